"""What a chain's node was given, from the state before it: read from the topology stored with the run, so that no
checkpoint stores it. Pure; for people only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from perdure.core import codec, template, topology
from perdure.core.topology import Topology
from perdure.errors import PerdureError


class NodeInputs:
    """The inputs of nodes as the topology of one run describes them."""

    def __init__(self) -> None:
        self._shape: Topology | None = None
        self._by_path: dict[str, Mapping[str, Any] | None] = {}

    def learn(self, text: str | None) -> None:
        """Take the topology as it is recorded. One of a format that is not known here says nothing."""
        try:
            self._shape = topology.from_document(codec.decode(text or "null"))
        except PerdureError:
            self._shape = None

    def of(self, path: str, state: Any) -> dict[str, Any]:
        """The arguments of the node at this path, by name; what the state does not have is left out."""
        if path not in self._by_path:
            self._by_path[path] = self._find(path)
        inputs = self._by_path[path]
        if not inputs or not isinstance(state, dict):
            return {}
        scope = {"state": state, "input": {}, "node_results": {}}
        found: dict[str, Any] = {}
        for name, value in inputs.items():
            try:
                found[name] = template.render(value, scope)
            except PerdureError:
                continue
        return found

    def _find(self, path: str) -> Mapping[str, Any] | None:
        shape, node = self._shape, None
        for name in path.split("/")[::2]:
            if shape is None:
                return None
            node = next((one for one in shape.nodes if one.id == unquote(name)), None)
            shape = None if node is None else node.inner
        return None if node is None else node.inputs
