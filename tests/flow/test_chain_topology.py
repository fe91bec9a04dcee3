"""Chains that have changed under a run: ahead of it everything may, behind it what differs is named."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.chains import YES, line, load, questions

from perdure import Chain, DurableRecoveryError, interrupt

ran: list[Any] = []


@pytest.fixture(autouse=True)
def fresh() -> None:
    ran.clear()


def noted(name: str) -> Any:
    def run() -> None:
        ran.append(name)

    run.__name__ = name
    return run


def asks() -> bool:
    return interrupt("go?").approved


def chain(*between: str, renamed: str = "before", behind: tuple[str, ...] = ("behind",)) -> Chain:
    """`before`, others, `asks`, others."""
    return line("changing", noted(renamed), *(noted(name) for name in between), asks, *(noted(b) for b in behind))


def _is_refused(changed: Chain, url: str, *named: str) -> None:
    """The changed chain is refused by name, with nothing stored: whoever has the right one can still be answered."""
    records = load(url, "r1").records
    with pytest.raises(DurableRecoveryError, match="'changing' has changed") as refused:
        changed.resume("r1", resume_value=YES, store=url)
    assert all(repr(name) in str(refused.value) for name in named), str(refused.value)
    assert load(url, "r1").records == records
    assert [row.status for row in questions(url, "r1")] == ["pending"]


def test_rule_what_lies_ahead_may_change(store_url: str):
    chain().run(execution_id="r1", store=store_url)
    longer = chain(behind=("extra", "behind", "more"))
    result: Any = longer.resume("r1", resume_value=YES, store=store_url)
    assert (result.status, ran) == ("completed", ["before", "extra", "behind", "more"])


def test_rule_what_lies_ahead_may_be_gone(store_url: str):
    chain().run(execution_id="r1", store=store_url)
    result: Any = chain(behind=()).resume("r1", resume_value=YES, store=store_url)
    assert (result.status, result.output, ran) == ("completed", True, ["before"])


def test_rule_a_node_inserted_before_the_pause_is_named(store_url: str):
    chain().run(execution_id="r1", store=store_url)
    _is_refused(chain("inserted"), store_url, "asks", "inserted")
    result: Any = chain().resume("r1", resume_value=YES, store=store_url)
    assert (result.status, ran) == ("completed", ["before", "behind"])


def test_rule_a_renamed_node_is_named_and_new_runs_of_the_new_chain_go_on(store_url: str):
    chain().run(execution_id="r1", store=store_url)
    changed = chain(renamed="before_too")
    _is_refused(changed, store_url, "before")
    assert changed.run(execution_id="r2", store=store_url).status == "paused"
    result: Any = changed.resume("r2", resume_value=YES, store=store_url)
    assert result.status == "completed"
    old: Any = chain().resume("r1", resume_value=YES, store=store_url)
    assert old.status == "completed"


def test_rule_a_node_that_asked_and_is_gone_is_named(store_url: str):
    chain().run(execution_id="r1", store=store_url)
    _is_refused(line("changing", noted("before"), noted("behind")), store_url, "asks")


def test_rule_a_node_of_another_kind_is_named(store_url: str):
    chain().run(execution_id="r1", store=store_url)
    changed = Chain("changing").add_node("before", fn=noted("before")).add_node("asks", type="hitl")
    changed.add_node("behind", fn=noted("behind")).connect("before", "asks").connect("asks", "behind")
    _is_refused(changed, store_url, "asks")


def test_rule_a_way_taken_that_is_gone_is_named(store_url: str):
    old = chain()
    old.run(execution_id="r1", store=store_url)
    changed = line("changing", noted("before"), asks).add_node("behind", fn=noted("behind"))
    changed.connect("before", "behind").connect("asks", "behind")
    _is_refused(changed, store_url, "before", "behind")


def test_rule_a_change_inside_a_nested_chain_is_named_with_its_place(store_url: str):
    def outer(*inner: Any) -> Chain:
        nested = line("inner", *inner)
        return Chain("changing").add_node("in", agent=nested).add_node("end", fn=noted("end")).connect("in", "end")

    outer(noted("a"), asks).run(execution_id="r1", store=store_url)
    _is_refused(outer(noted("a"), noted("between"), asks), store_url, "between")
    result: Any = outer(noted("a"), asks, noted("more")).resume("r1", resume_value=YES, store=store_url)
    assert (result.status, ran) == ("completed", ["a", "more", "end"])


def test_rule_code_inside_a_node_is_nobodys_business(store_url: str):
    """A completed body is not run again, so it may say anything now."""
    chain().run(execution_id="r1", store=store_url)

    def before() -> None:
        raise AssertionError("changed")

    result: Any = line("changing", before, asks, noted("behind")).resume("r1", resume_value=YES, store=store_url)
    assert (result.status, ran) == ("completed", ["before", "behind"])


def test_rule_settings_ahead_and_labels_anywhere_may_change(store_url: str):
    chain().run(execution_id="r1", store=store_url)
    changed = Chain("changing").add_node("before", fn=noted("before"), name="Before all else")
    changed.add_node("asks", fn=asks, retries=2).add_node("behind", fn=noted("behind"), output_key="x")
    changed.connect("before", "asks").connect("asks", "behind", condition="asks", label="yes")
    result: Any = changed.resume("r1", resume_value=YES, store=store_url)
    assert (result.status, ran) == ("completed", ["before", "behind"])


def test_rule_a_fork_is_held_to_the_shape_it_inherits(store_url: str):
    chain().run(execution_id="r1", store=store_url)
    with pytest.raises(DurableRecoveryError, match="'changing' has changed"):
        chain("inserted").fork("r1", store=store_url)
    assert chain().fork("r1", store=store_url).status == "paused"


def test_rule_a_failed_run_is_retried_with_a_mended_chain(store_url: str):
    """The node that failed has ended nothing: its code, and what comes behind it, may be others now."""

    def breaks() -> None:
        raise ValueError("broken")

    def mended() -> str:
        return "mended"

    with pytest.raises(ValueError, match="broken"):
        line("mending", noted("before"), breaks, noted("behind")).run(execution_id="r1", store=store_url)
    mended.__name__ = "breaks"
    result = line("mending", noted("before"), mended, noted("more"), noted("behind")).retry("r1", store=store_url)
    assert (result.node_results["breaks"], ran) == ("mended", ["before", "more", "behind"])
