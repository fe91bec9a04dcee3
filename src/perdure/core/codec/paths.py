"""Where in a value something is: a linked list, a tuple per level, that is rendered only for messages."""

from __future__ import annotations

from typing import Union

# (parent, segment); an int is an index, a str a key or field. None is the root.
Path = Union["tuple[Path, int | str]", None]


def render(path: Path) -> str:
    """`$.items[3].price`; a key that is no identifier is quoted: `$["a b"]`."""
    segments: list[str] = []
    while path is not None:
        path, segment = path
        segments.append(_segment(segment))
    return "$" + "".join(reversed(segments))


def _segment(segment: int | str) -> str:
    if isinstance(segment, int):
        return f"[{segment}]"
    if segment.isidentifier():
        return f".{segment}"
    return f"[{segment!a}]"
