"""Where an operation is. Decides the text form of paths and keys; the same everywhere they are shown or stored.

- The run's function has path `""`. Its n-th call has the key `n`.
- The k-th task created in a path has the path `<path>/~k`.
- A nested workflow's function has its operation's key as path: its calls are in recorded order like the parent's.
- A body (a step's, say) has its operation's key plus `!` as path: its calls are looked up, not ordered.
- A question with a `key` has the path `<path of its workflow>/?<key>`, index 0.
- An idempotency key has the path `@<name>:<digest>`, index 0.
- A decision of `patched` has the path `%<name>`, index 0.
- A chain's topology, and the changes people made to its state, have paths below `%/`.
- A chain's node has its quoted id as path below the chain's; its n-th visit is index n.

Names of people's own are percent-encoded, so that no `/` or `!` in them means anything, and keys are ASCII.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from urllib.parse import quote, unquote

_MAX_OPERATION_ID_CHARS = 200
"""Below what providers take as idempotency key (255 is common), with room for a prefix."""


def operation_key(path: str, index: int) -> str:
    """The key of the `index`-th operation in `path`."""
    return f"{path}/{index}" if path else str(index)


def task_path(path: str, child: int) -> str:
    """The path of the `child`-th task created in `path`."""
    return f"{path}/~{child}" if path else f"~{child}"


def body_path(key: str) -> str:
    """The path of calls made inside the body of operation `key`."""
    return key + "!"


def enclosing_body(path: str) -> str:
    """The path of the innermost body that `path` lies in; "" in workflow code."""
    return path[: path.rfind("!") + 1]


def idempotency_path(name: str, digest: str) -> str:
    """The path under which an `@idempotent` call with this key is recorded once per run."""
    return f"@{quote(name, safe='')}:{digest}"


def patch_path(name: str) -> str:
    """The path under which a run's decision for `patched(name)` is recorded."""
    return "%" + quote(name, safe="")


STATE_PATCHES = "%/state"
"""The path of what people changed in a chain's state; no name of `patched` has a slash in it."""
TOPOLOGY = "%/topology"
"""The path of the chain's topology as it was when the run began."""


def defaults_path(base: str) -> str:
    """The path of what a chain's schema made for keys that its state did not have."""
    return f"{base}/%/defaults" if base else "%/defaults"


def node_path(base: str, node_id: str) -> str:
    """The path of a chain's node; its n-th visit has the key `<path>/n`. `~` would make it a task, a digit alone a
    call."""
    named = quote(node_id, safe="").replace("~", "%7E")
    if named.isdigit():
        named = f"%{ord(named[0]):X}{named[1:]}"
    return f"{base}/{named}" if base else named


def node_id(path: str, index: int) -> str:
    """The chain's node in which an operation is (the innermost one), by the name people gave it; in a workflow function
    the operation's key."""
    names: list[str] = []
    for name in path.partition("!")[0].split("/")[::2]:
        if not name or name.isdigit() or name[0] in "~?@":
            break
        names.append(name)
    return unquote(names[-1]) if names else operation_key(path, index)


def named_path(base: str, name: str) -> str:
    """The path of an operation with a name of its own (a question's `key`) inside the workflow at `base`."""
    named = "?" + quote(name, safe="")
    return f"{base}/{named}" if base else named


def is_ordered(path: str) -> bool:
    """Whether completions in `path` are released one at a time in recorded order (workflow code), or just looked up."""
    return "!" not in path and not path.startswith("@")


def is_below(path: str, key: str) -> bool:
    """Whether `path` lies inside operation `key` (its nested workflow or its body), at any depth."""
    return path == key or path.startswith((key + "/", key + "!"))


def is_same_or_ancestor(path: str, other: str) -> bool:
    """Whether `other` is `path` itself or a path that encloses it."""
    if other == path or other == "":
        return True
    return path.startswith((other + "/", other + "!"))


def storable(text: str) -> str:
    """Text for a plain column: as it is, or escaped where a database cannot hold it (NUL, lone surrogates)."""
    if "\0" not in text and not any("\ud800" <= char <= "\udfff" for char in text):
        return text
    return text.encode("unicode_escape").decode("ascii")


def operation_id(run_id: str, key: str) -> str:
    """What a provider is given as idempotency key: the same at every repetition of the operation in this run, and no
    other operation's, of whatever run.

    Printable ASCII without blanks, 200 characters at most: `<run id, percent-encoded>/<key>`, or the `sha256:` of
    that if it is longer.
    """
    text = f"{quote(run_id, safe='')}/{key}"
    if len(text) <= _MAX_OPERATION_ID_CHARS:
        return text
    return "sha256:" + sha256(text.encode("ascii")).hexdigest()


def key_of(operation_id_: str, run_id: str, known: Iterable[str]) -> str | None:
    """Which of a run's known keys has this operation id, if any. Long ids are digests: they cannot be cut apart."""
    return next((key for key in known if operation_id(run_id, key) == operation_id_), None)
