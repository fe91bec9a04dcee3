"""What stands where an ended drive was. Decides nothing."""

from __future__ import annotations

from typing import Any

from perdure.errors import RunLost


class Gone:
    """What the parts of an ended drive see in its place: whatever they still want, the run is not driven here."""

    is_void = is_closed = True
    can_record = False

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id

    def loop_error(self, context: dict[str, Any]) -> None:
        """Nobody is interested any more."""

    def __getattr__(self, name: str) -> Any:
        raise RunLost(self.run_id, "the run is no longer driven here")
