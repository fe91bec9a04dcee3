"""What goes to which stream, and how it looks. With --json stdout carries one JSON document and nothing else.

Ids are never cut: without a terminal a table is as wide as it needs to be. With one, its longest column of
words gives way; where that is not enough, each row becomes a block of lines.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TextIO

from perdure.cli.values import plain, shown

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

# Stored texts come from anywhere; one with an escape sequence must not move the cursor of who reads it.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069]")
_ENDLESS = 100_000
_GAP = 3  # between two columns of a table
_MIN_FOLDED = 12  # a column that gives way is no narrower than this
_documents: ContextVar[TextIO | None] = ContextVar("documents", default=None)
STYLES = {
    "completed": "green", "paused": "yellow", "waiting": "yellow", "failed": "red", "cancelled": "magenta",
    "needs_attention": "bold red", "running": "cyan", "ok": "green", "warn": "yellow", "fail": "red",
}  # fmt: skip


@contextmanager
def only_documents(is_json: bool) -> Iterator[None]:
    """With --json, what anybody else prints on stdout (a runner's own code does) goes to stderr."""
    if not is_json:
        yield
        return
    token = _documents.set(sys.stdout)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        _documents.reset(token)


def emit(is_json: bool, document: Mapping[str, Any], render: Callable[[Console], None]) -> None:
    """Print the document for machines, or render it for people."""
    if is_json:
        out = _documents.get() or sys.stdout
        out.write(json.dumps(plain(document), indent=2) + "\n")
        out.flush()
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


def table(target: Console, columns: Sequence[str], rows: Sequence[Sequence[object]], *, ids: int = 1) -> RenderableType:
    """A table, or blocks of lines where the terminal is too narrow for one. The first `ids` columns stay in one
    piece, as long as the terminal can hold them at all.
    """
    texts = [[cell(value) for value in row] for row in rows]
    widths = [max([len(name), *(len(row[number]) for row in texts)]) for number, name in enumerate(columns)]
    # Words are folded between words; what has none, a time or an id, would be torn.
    has_words = [any(" " in row[number] for row in texts) for number in range(len(columns))]
    folded = max(range(ids, len(columns)), key=lambda number: (has_words[number], widths[number]))
    left = target.width - sum(widths) + widths[folded] - _GAP * (len(columns) - 1)
    if left < min(widths[folded], _MIN_FOLDED):
        return _blocks(columns, texts, target.width)
    return _table(columns, texts, folded)


def _table(columns: Sequence[str], texts: Sequence[Sequence[str]], folded: int) -> Table:
    """One line for each row, but for the column that is folded."""
    from rich import box
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    for number, name in enumerate(columns):
        made.add_column(name, no_wrap=number != folded, overflow="fold")
    for row in texts:
        made.add_row(*map(_styled, row))
    return made


def _blocks(columns: Sequence[str], texts: Sequence[Sequence[str]], room: int) -> RenderableType:
    """Each row as lines of its own: what it is about, and below, what there is to say of it."""
    from rich.console import Group
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    lines: list[RenderableType] = []
    for row in texts:
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(no_wrap=True)
        grid.add_column(overflow="fold")
        for name, text in zip(columns[1:], row[1:], strict=True):
            if text:
                grid.add_row(name, _styled(text))
        # Without its name, the longest id there is would not fit forty columns.
        heading = Text(row[0], style="bold", overflow="fold")
        if len(columns[0]) + 2 + len(row[0]) <= room:
            heading = Text.assemble((f"{columns[0]}  ", "dim"), heading)
        lines += [heading, Padding(grid, (0, 0, 1, 2))]
    return Group(*lines)


def _styled(text: str) -> Any:
    from rich.text import Text

    return Text(text, style=STYLES.get(text, ""))
