"""What is persisted must outlive changes of the code around it, and is refused when it cannot be understood."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from tests.support.database import execute
from tests.support.engines import opened, row_of

from perdure import (
    DurableRecoveryError,
    InvalidInputError,
    Resume,
    interrupt,
    open_engine,
    operation_id,
    step,
    workflow,
)
from perdure.engine.engine import Engine
from perdure.flow import names

YES = Resume(approved=True)
ran: list[Any] = []
handed_out: list[str] = []


@pytest.fixture(autouse=True)
def fresh() -> None:
    ran.clear()
    handed_out.clear()


@pytest.fixture
def new_code(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """After this, names may be given to other functions, as in the next version's process."""
    return lambda: monkeypatch.setattr(names, "_known", {})


@step(name="formats.pay")
async def pay() -> int:
    handed_out.append(operation_id())
    return len(handed_out)


@step(name="formats.note")
async def note(n: int) -> int:
    ran.append(n)
    return n


@workflow(name="formats.flat")
async def flat() -> int:
    return await pay()


@workflow(name="formats.outer")
async def outer() -> int:
    return await flat()


@workflow(name="formats.asking")
async def asking(n: int) -> list[Any]:
    return [await note(n), interrupt("go on?").approved]


async def test_rule_operations_of_different_runs_have_different_ids(engine: Engine):
    """A provider that is handed one id twice performs one of the two."""
    await engine.run(outer, execution_id="customer")
    await engine.run(flat, execution_id="customer/0")
    await engine.run(flat, execution_id="ä ö")
    assert len(set(handed_out)) == 3
    assert all(made.isascii() and " " not in made for made in handed_out)


@pytest.mark.parametrize("run_id", ["customer/42", "ä ö", "r" * 256])
async def test_rule_an_operation_in_doubt_is_repeated_by_its_id_whatever_the_run_is_called(store_url: str, run_id: str):
    async with opened(store_url) as engine:
        await engine.run(asking_manually, 1, execution_id=run_id)
    execute(store_url, "DELETE FROM record WHERE type = 'completed' AND kind = 'step'")
    async with opened(store_url) as engine:
        with pytest.raises(DurableRecoveryError) as doubt:
            await engine.resume(asking_manually, run_id, resume_value=YES)
        assert doubt.value.operation_id == (await row_of(engine, run_id)).blocked_operation
        result = await engine.resume(asking_manually, run_id, repeat_operation=doubt.value.operation_id)
    assert result.output == [1, True]
    assert ran == [1, 1]


@step(name="formats.manual", recovery="manual")
async def manual(n: int) -> int:
    ran.append(n)
    return n


@workflow(name="formats.asking_manually")
async def asking_manually(n: int) -> list[Any]:
    return [await manual(n), interrupt("go on?").approved]


@dataclass
class Receipt:
    amount: int


@dataclass
class Slip:
    amount: int
    note: str = ""


def evolving(is_new: bool) -> Any:
    """A workflow in two versions: a step gets an optional parameter, the class of its result another name."""

    async def before(amount: int) -> Receipt:
        ran.append(amount)
        return Receipt(amount)

    async def after(amount: int, currency: str = "EUR") -> Slip:
        ran.append(amount)
        return Slip(amount)

    charge: Any = step(name="formats.charge")(after if is_new else before)

    @workflow(name="formats.evolving")
    async def evolving() -> list[Any]:
        paid = await charge(5)
        return [type(paid).__name__, paid.amount, interrupt("go on?").approved]

    return evolving


async def test_rule_a_new_optional_parameter_and_a_renamed_result_class_strand_no_run(
    engine: Engine, new_code: Callable[[], None]
):
    await engine.run(evolving(False), execution_id="r1")
    new_code()
    result = await engine.resume(evolving(True), "r1", resume_value=YES)
    assert result.output == ["Slip", 5, True]
    assert ran == [5]


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        ("UPDATE record SET type = 'hm' WHERE type = 'completed'", "'hm'"),
        ("DELETE FROM record WHERE type = 'submitted'", "input"),
    ],
)
async def test_rule_a_journal_that_cannot_be_understood_is_not_run(store_url: str, damage: str, says: str):
    async with opened(store_url) as engine:
        await engine.run(asking, 1, execution_id="r1")
    execute(store_url, damage)
    async with opened(store_url) as engine:
        with pytest.raises(DurableRecoveryError, match=says):
            await engine.resume(asking, "r1", resume_value=YES)
        assert (await row_of(engine, "r1")).status == "needs_attention"
        with pytest.raises(DurableRecoveryError, match=says):
            await engine.fork(asking, "r1")
    assert ran == [1]


@pytest.mark.parametrize("wrong", ["", " ", "a\0b", "\ud800", "x" * 257, 7])
async def test_rule_the_id_of_a_fork_is_checked(engine: Engine, wrong: Any):
    await engine.run(asking, 1, execution_id="r1")
    with pytest.raises(InvalidInputError) as caught:
        await engine.fork(asking, "r1", new_id=wrong)
    assert caught.value.field == "new_id"


@pytest.mark.parametrize(
    ("field", "given"), [("store", {"store": 7}), ("settings", {"store": "sqlite:///never.db", "settings": 7})]
)
async def test_rule_what_is_no_store_and_no_settings_is_refused(field: str, given: dict[str, Any]):
    with pytest.raises(InvalidInputError) as caught:
        open_engine(**given)
    assert caught.value.field == field
