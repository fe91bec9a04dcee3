"""What goes to which stream, and how it looks. With --json stdout carries one JSON document and nothing else.

Ids are never cut: without a terminal a table is as wide as it needs to be; with one, other columns give way
first.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from perdure.cli.values import plain, shown

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

# Stored texts come from anywhere; one with an escape sequence must not move the cursor of who reads it.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069]")
_ENDLESS = 100_000
STYLES = {
    "completed": "green", "paused": "yellow", "waiting": "yellow", "failed": "red", "cancelled": "magenta",
    "needs_attention": "bold red", "running": "cyan", "ok": "green", "warn": "yellow", "fail": "red",
}  # fmt: skip


def emit(is_json: bool, document: Mapping[str, Any], render: Callable[[Console], None]) -> None:
    """Print the document for machines, or render it for people."""
    if is_json:
        sys.stdout.write(json.dumps(plain(document), indent=2) + "\n")
        sys.stdout.flush()
    else:
        render(console())


def emit_lines(is_json: bool, document: Mapping[str, Any], lines: Sequence[str]) -> None:
    """Print the document for machines, or plain lines for people, for which nothing needs to be loaded."""
    if is_json:
        emit(True, document, lambda out: None)
    else:
        sys.stdout.write("".join(f"{visible(line)}\n" for line in lines))
        sys.stdout.flush()


def console() -> Console:
    """Stdout for people. Nothing that is printed is taken for markup."""
    from rich.console import Console  # 80 ms that --json does not need

    is_terminal = sys.stdout.isatty()
    return Console(width=None if is_terminal else _ENDLESS, markup=False, highlight=False, emoji=False)


def complain(text: str) -> None:
    """A line for people about what went wrong, on stderr."""
    sys.stderr.write(f"perdure: {visible(text)}\n")
    sys.stderr.flush()


def visible(text: str) -> str:
    """The text with control characters written out."""
    return _UNPRINTABLE.sub(lambda match: match[0].encode("unicode_escape", "surrogatepass").decode(), text)


def cell(value: object) -> str:
    """Anything as the text of a cell: a text as it is, all else as JSON."""
    if value is None:
        return ""
    return visible(value if isinstance(value, str) else shown(value))


def table(target: Console, columns: Sequence[str], rows: Sequence[Sequence[object]], *, ids: int = 1) -> Table:
    """A table whose first `ids` columns hold ids, which stay in one piece as long as the terminal can hold
    them at all.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    made = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    texts = [[cell(value) for value in row] for row in rows]
    room = target.width
    for number, name in enumerate(columns):
        longest = max([len(name), *(len(row[number]) for row in texts)])
        is_whole = number < ids and longest + 2 <= room
        if is_whole:
            room -= longest + 2
        made.add_column(name, no_wrap=is_whole, overflow="fold", min_width=longest if is_whole else None)
    for row in texts:
        made.add_row(*(Text(text, style=STYLES.get(text, "")) for text in row))
    return made
