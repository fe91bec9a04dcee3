"""How a node's function gets its arguments: by name from the state, or as its `input_mapping` says. Pure.

What a function gets is its own: it may change it, and nobody sees that.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from perdure.core import lineage, template
from perdure.errors import ChainStateError, ChainTemplateError, InvalidInputError

_POSITIONAL = inspect.Parameter.POSITIONAL_ONLY
_WHOLE = "state"
_CONTEXT = "context"


@dataclass(frozen=True, slots=True)
class Moment:
    """What a node sees when it begins: the state, the chain's input, the results so far, and the run's context, which
    is stored nowhere."""

    state: Mapping[str, Any]
    input: Mapping[str, Any]
    node_results: Mapping[str, Any]
    context: Any = None

    @property
    def scope(self) -> dict[str, Any]:
        """The names that templates and conditions know."""
        return {"state": self.state, "input": self.input, "node_results": self.node_results}

    def render(self, value: Any) -> Any:
        """A template's value, the reader's own."""
        return lineage.own(template.render(value, self.scope))


class Binding:
    """The parameters of one function, but for the first `given_count`. `mapping` has templates by parameter; what it
    leaves out comes by name."""

    def __init__(
        self, function: Callable[..., Any], mapping: Mapping[str, Any] | None, field: str, *, given_count: int = 0
    ) -> None:
        self._mapping = dict(mapping or {})
        try:
            self._parameters = list(inspect.signature(function).parameters.values())[given_count:]
        except (TypeError, ValueError):
            raise InvalidInputError(field, f"the parameters of {function!r} are not known; wrap it in a def") from None
        self._takes_rest = any(p.kind is p.VAR_KEYWORD for p in self._parameters)
        self._named = [p for p in self._parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        unknown = self._mapping.keys() - {p.name for p in self._named}
        if unknown and not self._takes_rest:
            raise InvalidInputError("input_mapping", f"the function has no parameter {min(unknown)!r}")
        template.check(self._mapping)

    @property
    def shown(self) -> dict[str, Any]:
        """Where each argument comes from, as templates: for drawings and for the inputs of checkpoints."""
        names = [p.name for p in self._named if p.name not in (_WHOLE, _CONTEXT)]
        return {name: self._mapping.get(name, f"{{{{state.{name}}}}}") for name in names}

    def arguments(self, node_id: str, moment: Moment) -> tuple[list[Any], dict[str, Any]]:
        """Positional and keyword arguments. Raises `ChainStateError` or `ChainTemplateError` naming what is missing."""
        positional: list[Any] = []
        named: dict[str, Any] = {}
        for parameter in self._named:
            found = self._value(node_id, parameter, moment)
            if found is parameter.empty:
                continue
            if parameter.kind is _POSITIONAL:
                positional.append(found)
            else:
                named[parameter.name] = found
        if self._takes_rest:
            rest = self._mapping if self._mapping else moment.state
            taken = {p.name for p in self._named}
            for name in rest:
                if name not in taken:
                    named[name] = moment.render(rest[name]) if self._mapping else lineage.own(rest[name])
        return positional, named

    def _value(self, node_id: str, parameter: inspect.Parameter, moment: Moment) -> Any:
        name = parameter.name
        if name in self._mapping:
            try:
                return moment.render(self._mapping[name])
            except ChainTemplateError as error:
                raise ChainTemplateError(error.path, f"for {name!r} of node {node_id!r}: {_told(error)}") from None
        if name in moment.state:
            return lineage.own(moment.state[name])
        if name == _CONTEXT:
            return moment.context
        if name == _WHOLE:
            return lineage.own(dict(moment.state))
        if parameter.default is not parameter.empty:
            return parameter.empty
        known = ", ".join(map(repr, moment.state)) or "nothing"
        raise ChainStateError(name, f"node {node_id!r} needs it, and the state has {known}")


def _told(error: ChainTemplateError) -> str:
    return str(error).removeprefix(f"{error.path}: ")
