"""The list of tests that are not run over a third-party checkpointer stays honest."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.engine.foreign_skips import REASONS, SKIPPED


def test_every_name_in_the_list_is_a_test_that_would_run_there() -> None:
    functions = {
        node.name: {each.arg for each in node.args.args}
        for path in Path(__file__).parent.glob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    }
    assert [name for name in SKIPPED if not functions.get(name, set()) & {"engine", "store_url"}] == []


def test_no_test_is_listed_twice() -> None:
    assert sum(len(names) for names in REASONS.values()) == len(SKIPPED)
