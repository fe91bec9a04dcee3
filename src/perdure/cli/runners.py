"""From `module:attr` or `path/file.py:attr` to a runner. Decides what counts as one; nothing else is ever
called.

A factory is a plain function that needs no arguments. Classes, built-ins and other callables are refused
unseen: naming `os:abort` must not abort.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
from pathlib import Path
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, cast

from perdure.errors import InvalidInputError

if TYPE_CHECKING:
    from perdure.engine.runner import Runner

OPTION = "--runner"


def load_runner(spec: str) -> Runner:
    """The runner that `spec` names. The current directory is importable. `InvalidInputError` says what is
    wrong.
    """
    place, _, attribute = spec.rpartition(":")
    if not place or not attribute:
        raise InvalidInputError(OPTION, f"{spec!r} must be module:name or path/file.py:name")
    _make_importable(os.getcwd())
    module = _load_file(Path(place)) if place.endswith(".py") else _load_module(place)
    return _as_runner(_attribute(module, attribute, place), spec)


def load_runners(specs: list[str]) -> list[Runner]:
    """All runners of a worker; two with one name are refused."""
    runners = [load_runner(spec) for spec in specs]
    names = [runner.name for runner in runners]
    if twice := {name for name in names if names.count(name) > 1}:
        raise InvalidInputError(OPTION, f"more than one is named {', '.join(sorted(twice))}")
    return runners


def is_runner(value: object) -> bool:
    """Whether it can be run: it has a name, a kind, and a way to be driven."""
    if isinstance(value, type):
        return False
    has_names = isinstance(getattr(value, "name", None), str) and isinstance(getattr(value, "kind", None), str)
    return has_names and callable(getattr(value, "drive", None)) and callable(getattr(value, "enter", None))


def _make_importable(directory: str) -> None:
    if directory not in sys.path:
        sys.path.insert(0, directory)


def _load_module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or name
        if name == missing or name.startswith(missing + "."):
            raise InvalidInputError(OPTION, f"there is no module {name} (looked in {os.getcwd()} too)") from error
        raise InvalidInputError(OPTION, f"module {name} imports {missing}, which is not there") from error
    except (Exception, SystemExit) as error:  # a script without a guard may end the process
        raise InvalidInputError(OPTION, f"module {name} cannot be imported: {_said(error)}") from error


def _load_file(path: Path) -> ModuleType:
    file = path.resolve()
    if not file.is_file():
        raise InvalidInputError(OPTION, f"there is no file {path}")
    _make_importable(str(file.parent))
    known = sys.modules.get(file.stem)
    if known is not None and getattr(known, "__file__", None) == str(file):
        return known
    # Under its own name if that is free, so that the file's own modules find the same one; else it hides
    # nobody.
    name = file.stem if known is None else f"_perdure_runner_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise InvalidInputError(OPTION, f"{path} is not a Python file")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise InvalidInputError(OPTION, f"{path} cannot be imported: {_said(error)}") from error
    return module


def _attribute(module: ModuleType, attribute: str, place: str) -> object:
    found: Any = module
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            known = sorted(name for name, value in vars(module).items() if is_runner(value))
            hint = f"; its runners: {', '.join(known)}" if known else ""
            raise InvalidInputError(OPTION, f"{place} has no {attribute}{hint}") from None
    return found


def _as_runner(found: object, spec: str) -> Runner:
    if is_runner(found):
        return cast("Runner", found)
    if not _is_factory(found):
        raise InvalidInputError(
            OPTION,
            f"{spec} is {_what(found)}, neither a runner nor a function without arguments that returns one",
        )
    try:
        made = cast("FunctionType", found)()
    except (Exception, SystemExit) as error:
        raise InvalidInputError(OPTION, f"the factory {spec} raised {_said(error)}") from error
    if not is_runner(made):
        raise InvalidInputError(OPTION, f"the factory {spec} returned {_what(made)}, not a runner")
    return cast("Runner", made)


def _is_factory(found: object) -> bool:
    """A plain function that can be called without arguments and returns at once, no coroutine."""
    if not isinstance(found, FunctionType):
        return False
    if inspect.iscoroutinefunction(found) or inspect.isgeneratorfunction(found) or inspect.isasyncgenfunction(found):
        return False
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = inspect.signature(found).parameters.values()
    return all(each.default is not each.empty or each.kind in kinds for each in parameters)


def _what(value: object) -> str:
    if isinstance(value, type):
        return f"the class {value.__qualname__}"
    if inspect.iscoroutinefunction(value):
        return "an async function (is @workflow missing?)"
    if callable(value):
        return f"a callable of type {type(value).__qualname__}"
    return f"a {type(value).__qualname__}"


def _said(error: BaseException) -> str:
    return f"{type(error).__qualname__}: {error}"
