"""A CSV file of claims as it comes: any encoding, any delimiter, broken rows. Decides what the rows are, not
whether they are right.

One bad row never hides another: what cannot be split into cells becomes a row with a `problem`.
"""

from __future__ import annotations

import codecs
import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

COLUMNS = ("receipt", "employee", "date", "category", "amount", "currency", "description")
REQUIRED = ("employee", "date", "category", "amount")
MAX_LINES_PER_ROW = 20
"""A quote that is still open after so many lines was never meant to span them."""


class FileProblem(ValueError):
    """The file as a whole cannot be used: it cannot be read, or a column is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row: the line of the file on which it begins (1 is the first), its cells by column, or why there
    are none.
    """

    line: int
    cells: dict[str, str] = field(default_factory=dict)
    problem: str | None = None


def read_rows(path: Path) -> list[Row]:
    """All rows of a file, in order. Raises `FileProblem` naming what is wrong with the file as a whole."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise FileProblem(f"{path}: {error.strerror or error}") from error
    return list(parse_rows(content, name=str(path)))


def parse_rows(content: bytes, *, name: str = "the file") -> Iterator[Row]:
    """The rows of a file's content."""
    lines = _lines(content)
    if not any(line.strip() for line in lines):
        raise FileProblem(f"{name} is empty")
    start = next(number for number, line in enumerate(lines) if line.strip())
    delimiter = max(",;\t|", key=lines[start].count)
    header = [cell.strip().lower() for cell in _cells(lines[start], delimiter)]
    missing = [column for column in REQUIRED if column not in header]
    if missing:
        raise FileProblem(f"{name} has no column {', '.join(missing)}; its first line says: {', '.join(header)}")
    return _rows(lines, start + 1, header, delimiter)


def _lines(content: bytes) -> list[str]:
    """Physical lines with their ends. A line that is no UTF-8 is read as Windows-1252, whatever the others
    are.
    """
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        content = content.decode("utf-16", errors="replace").encode()
    return [_decode(line) for line in content.removeprefix(codecs.BOM_UTF8).splitlines(keepends=True)]


def _decode(line: bytes) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError:
        # Five bytes mean nothing in Windows-1252; latin-1 has something for every byte.
        try:
            return line.decode("cp1252")
        except UnicodeDecodeError:
            return line.decode("latin-1")


def _rows(lines: Sequence[str], start: int, header: Sequence[str], delimiter: str) -> Iterator[Row]:
    number = start
    while number < len(lines):
        if not lines[number].strip():
            number += 1
            continue
        count = _line_count(lines, number, delimiter)
        if count == 0:
            yield Row(line=number + 1, problem="a quote is opened and never closed")
            number += 1
            continue
        yield _row(number + 1, "".join(lines[number : number + count]), header, delimiter)
        number += count


def _line_count(lines: Sequence[str], start: int, delimiter: str) -> int:
    """How many physical lines the row takes; 0 if a quote in it is never closed."""
    is_open = False
    for count, line in enumerate(lines[start : start + MAX_LINES_PER_ROW], 1):
        state = _is_open_after(line, delimiter, is_open)
        if state is None:
            return 0
        if not state:
            return count
        is_open = True
    return 0


def _is_open_after(line: str, delimiter: str, is_open: bool) -> bool | None:
    """Whether a quoted cell goes on in the next line. A quote opens only at the start of a cell; a doubled
    one is text.

    None if a quote closes in the middle of a cell: then it was meant to open one, and the quote before it was
    never closed.
    """
    is_cell_start = not is_open
    chars = line.rstrip("\r\n")
    position = 0
    while position < len(chars):
        char = chars[position]
        if is_open and char == '"':
            following = chars[position + 1 : position + 2]
            if following == '"':
                position += 1
            elif following in ("", delimiter):
                is_open = False
            else:
                return None
        elif not is_open:
            is_open = char == '"' and is_cell_start
            is_cell_start = char == delimiter
        position += 1
    return is_open


def _row(line: int, text: str, header: Sequence[str], delimiter: str) -> Row:
    try:
        cells = _cells(text, delimiter)
    except csv.Error as error:
        return Row(line=line, problem=str(error))
    if len(cells) > len(header) and any(cell.strip() for cell in cells[len(header) :]):
        return Row(line=line, problem=f"has {len(cells)} cells, the header has {len(header)}")
    named = dict(zip(header, cells, strict=False))
    return Row(line=line, cells={column: " ".join(named.get(column, "").split()) for column in COLUMNS})


def _cells(text: str, delimiter: str) -> list[str]:
    return next(csv.reader([text], delimiter=delimiter), [])
