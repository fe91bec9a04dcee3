"""The context variables of the reference: set for readers in the body of a node; nobody decides by them."""

from __future__ import annotations

from typing import Any

from perdure import Chain, Resume, interrupt
from perdure.chain.idempotent import _current_checkpointer
from perdure.chain.interrupt import _agent_path, _execution_id, _resume_value


def seen() -> dict[str, Any]:
    answer = _resume_value.get()
    return {"run": _execution_id.get(), "path": _agent_path.get(), "answer": answer and answer.metadata}


async def test_a_node_reads_its_run_and_the_answer_it_goes_on_with(store_url: str) -> None:
    found: list[dict[str, Any]] = []

    async def ask() -> bool:
        found.append(seen())
        return interrupt("go on?", {}).approved

    chain = Chain("variables").add_node("ask", fn=ask).add_node("after", fn=lambda: found.append(seen()))
    chain.connect("ask", "after")
    await chain.arun(execution_id="r1", store=store_url)
    await chain.aresume("r1", resume_value=Resume(approved=True, metadata={"by": "ann"}), store=store_url)

    assert found == [
        {"run": "r1", "path": None, "answer": None},
        {"run": "r1", "path": None, "answer": {"by": "ann"}},
        {"run": "r1", "path": None, "answer": None},
    ]
    assert _execution_id.get() is None


async def test_what_a_node_puts_into_the_variable_answers_nothing(store_url: str) -> None:
    async def ask() -> bool:
        _resume_value.set(Resume(approved=True))
        return interrupt("go on?", {}).approved

    result = await Chain("variables").add_node("ask", fn=ask).arun(store=store_url)

    assert result.status == "paused"


async def test_a_node_finds_the_checkpointer_of_its_chain(store_url: str) -> None:
    found: list[object] = []
    given = object()
    chain = Chain("variables", checkpointer=given).add_node("a", fn=lambda: found.append(_current_checkpointer.get()))
    await chain.arun(store=store_url)

    assert found == [given]
