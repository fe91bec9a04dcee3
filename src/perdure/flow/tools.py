"""Tools: functions with a name and a description, as chains (and agents) call them. Decides nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from perdure.core import ids
from perdure.errors import InvalidInputError


@dataclass(frozen=True, slots=True, eq=False)
class FunctionTool:
    """A function as a tool. `fn` may be sync or async; its parameters are the tool's."""

    name: str
    fn: Callable[..., Any]
    description: str = ""

    def __post_init__(self) -> None:
        ids.check_id(self.name, "name")
        if not callable(self.fn):
            raise InvalidInputError("fn", f"expected a function, got {type(self.fn).__name__}")
