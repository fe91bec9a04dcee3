"""Names that are stored. Renaming one strands the runs that have it in their journal: it needs a migration, too."""

from __future__ import annotations

from perdure.core import codec, keys
from perdure.core.records import Kind, OutcomeKind, QuestionStatus, RecordType, Recovery
from perdure.core.states import Status


def values(names: type) -> set[str]:
    return {str(name) for name in names}  # type: ignore[attr-defined]


def test_statuses_of_runs():
    assert values(Status) == {
        "queued",
        "pending",
        "running",
        "waiting",
        "retry_wait",
        "needs_attention",
        "completed",
        "failed",
        "cancelled",
    }


def test_types_of_records():
    assert values(RecordType) == {
        "submitted",
        "status",
        "started",
        "attempt_failed",
        "suspended",
        "delivered",
        "completed",
        "dropped",
        "patched",
        "answered",
        "repeat",
        "cancel",
        "note",
    }


def test_kinds_of_operations():
    assert values(Kind) == {
        "workflow",
        "step",
        "effect",
        "model",
        "tool",
        "node",
        "route",
        "patch",
        "timer",
        "value",
        "interrupt",
    }


def test_recovery_policies():
    assert values(Recovery) == {"safe", "idempotent", "manual"}


def test_kinds_of_outcomes():
    assert values(OutcomeKind) == {"value", "error", "cancelled"}


def test_statuses_of_questions():
    assert values(QuestionStatus) == {"pending", "answered", "withdrawn", "abandoned"}


def test_tags_of_the_codec():
    assert set(codec.TAGS) == TAGS


def test_forms_of_keys():
    """They are stored with every record, and handed to providers in operation ids."""
    assert keys.operation_key("", 0) == "0"
    assert keys.operation_key(keys.task_path("", 1), 2) == "~1/2"
    assert keys.body_path("~1/2") == "~1/2!"
    assert keys.idempotency_path("pay", "00") == "@pay:00"
    assert keys.idempotency_path("ü!/<pay>", "00") == "@%C3%BC%21%2F%3Cpay%3E:00"
    assert keys.patch_path("ü!/new") == "%%C3%BC%21%2Fnew"
    assert keys.operation_id("run", "~1/2") == "run/~1/2"
    assert keys.operation_id("a/b ü", "0") == "a%2Fb%20%C3%BC/0"
    assert keys.operation_id("r" * 256, "0") == LONG_ID


def test_digests_are_stored_and_may_not_change():
    assert codec.digest('{"n":1}') == DIGEST


TAGS = {
    "$bytearray",
    "$bytes",
    "$complex",
    "$counter",
    "$dataclass",
    "$date",
    "$datetime",
    "$decimal",
    "$defaultdict",
    "$deque",
    "$dict",
    "$enum",
    "$float",
    "$fraction",
    "$frozenset",
    "$int",
    "$model",
    "$namedtuple",
    "$ordereddict",
    "$path",
    "$range",
    "$set",
    "$str",
    "$time",
    "$timedelta",
    "$tuple",
    "$uuid",
}
DIGEST = "984530e49acf879ea2a3b7c3062fca65"
LONG_ID = "sha256:fe3a14b469b39497a4dd87d3ba4abfb943cae221c1d431f10e1805a1cf36547e"
