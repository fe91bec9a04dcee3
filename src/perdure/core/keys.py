"""Where an operation is. Decides the text form of paths and keys; the same everywhere they are shown or stored.

- The run's function has path `""`. Its n-th call has the key `n`.
- The k-th task created in a path has the path `<path>/~k`.
- A nested workflow's function has its operation's key as path: its calls are in recorded order like the parent's.
- A body (a step's, say) has its operation's key plus `!` as path: its calls are looked up, not ordered.
- A question with a `key` has the path `<path of its workflow>/?<key>`, index 0.
- An idempotency key has the path `@<name>:<digest>`, index 0.
"""

from __future__ import annotations

from urllib.parse import quote


def operation_key(path: str, index: int) -> str:
    """The key of the `index`-th operation in `path`."""
    return f"{path}/{index}" if path else str(index)


def task_path(path: str, child: int) -> str:
    """The path of the `child`-th task created in `path`."""
    return f"{path}/~{child}" if path else f"~{child}"


def body_path(key: str) -> str:
    """The path of calls made inside the body of operation `key`."""
    return key + "!"


def idempotency_path(name: str, digest: str) -> str:
    """The path under which an `@idempotent` call with this key is recorded once per run."""
    return f"@{name}:{digest}"


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
    """What a provider is given as idempotency key: the same at every repetition of the operation in this run."""
    return f"{run_id}/{key}"
