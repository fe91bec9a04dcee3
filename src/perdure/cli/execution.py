"""The commands that make runs go on: run, resume, retry, fork, cancel. They parse, call the engine, and show
what became of it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli import changes, options, session
from perdure.cli.changes import Change
from perdure.cli.exits import Exit, exit_code
from perdure.cli.output import complain, emit_lines, shown
from perdure.cli.runners import load_runner
from perdure.cli.values import decoded, parse_answer, parse_json, plain
from perdure.core.checkpoints import fork_point
from perdure.engine.liveness import dead_owners
from perdure.errors import ChainResumeError, InvalidInputError, OperationError

if TYPE_CHECKING:
    from perdure.core.records import Loaded
    from perdure.engine.engine import Engine
    from perdure.engine.results import RunResult
    from perdure.engine.runner import Runner

Input = Annotated[str | None, typer.Option("--input", metavar="JSON", help="The input, as JSON.", show_default=False)]
InputFile = Annotated[
    str | None,
    typer.Option(
        "--input-file", metavar="FILE", help="A file with the input, as JSON; - is stdin.", show_default=False
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="PATH=VALUE",
        help="Change a chain's state before it goes on: total=12, items[0].price=5, note=text. The value is JSON where"
        " it is some, else a text; PATH:=JSON takes JSON only. May be repeated.",
        show_default=False,
    ),
]
Interrupt = Annotated[
    str | None,
    typer.Option("--interrupt", metavar="ID", help="Which question, if several are open.", show_default=False),
]


def run(
    runner: options.Runner,
    given: Input = None,
    given_file: InputFile = None,
    run_id: Annotated[
        str | None,
        typer.Option(
            "--id",
            metavar="RUN_ID",
            help="The run's id. An id that exists is the same run.",
            show_default=False,
        ),
    ] = None,
    store: options.Store = None,
    is_json: options.Json = False,
) -> None:
    """Start a run and follow it to its end, or until it waits for an answer."""
    from perdure.core import ids

    has_input, value = _input(given, given_file)
    loaded = load_runner(runner)
    if not has_input:
        _refuse_no_input(loaded)
    chosen = ids.run_id() if run_id is None else ids.check_id(run_id, "--id")
    url = session.store_url(store, runner=loaded)
    _follow(chosen, url, runner, is_json, lambda engine: engine.run(loaded, value, execution_id=chosen))


def resume(
    run_id: options.RunId,
    runner: Annotated[
        str | None,
        typer.Option(
            "--runner",
            metavar="PLACE:NAME",
            help="module:name or path/file.py:name. Without it the answer is stored, and a worker goes on.",
            show_default=False,
        ),
    ] = None,
    value: Annotated[
        str | None,
        typer.Option(
            "--value",
            metavar="JSON",
            help='The answer: {"approved": true|false, "metadata": {...}}. No default.',
            show_default=False,
        ),
    ] = None,
    interrupt: Interrupt = None,
    repeat_operation: Annotated[
        str | None,
        typer.Option(
            "--repeat-operation",
            metavar="ID",
            help="Perform this operation, which is in doubt, once more.",
            show_default=False,
        ),
    ] = None,
    given_changes: Set = None,
    store: options.Store = None,
    db_path: options.DbPath = None,
    is_json: options.Json = False,
) -> None:
    """Answer a run's question and go on; or go on after a crash or a failure. A chain's state may be changed, too."""
    if interrupt is not None and value is None:
        raise InvalidInputError("--value", "is missing: --interrupt says which question, not what the answer is")
    if repeat_operation is not None and value is not None:
        raise InvalidInputError("--repeat-operation", "is given beside --value; they are two decisions")
    if repeat_operation is not None and given_changes:
        raise InvalidInputError("--repeat-operation", "is given beside --set; they are two decisions")
    if runner is None and given_changes:
        raise InvalidInputError("--runner", "is missing: --set is checked against the chain that goes on with it")
    made = changes.parse_changes(given_changes or ())
    answer = None if value is None else parse_answer(value)
    if runner is None:
        _answer_only(run_id, answer, interrupt, session.store_url(store, db_path), is_json)
        return
    loaded = load_runner(runner)
    url = session.store_url(store, db_path, loaded)
    _refuse_stateless(loaded, made)

    async def work(engine: Engine) -> RunResult[Any]:
        return await engine.resume(
            loaded,
            run_id,
            resume_value=answer,
            interrupt_id=interrupt,
            repeat_operation=repeat_operation,
            answered_by=session.user(),
            state_patch=await _patch(engine, loaded, run_id, made, _at_question(interrupt)),
        )

    _follow(
        run_id,
        url,
        runner,
        is_json,
        work,
        is_existing=True,
        is_answer_missing=answer is None and repeat_operation is None,
    )


def retry(
    run_id: options.RunId, runner: options.Runner, store: options.Store = None, is_json: options.Json = False
) -> None:
    """Give a failed run a new attempt: what it has recorded stands, the error it failed with is forgotten."""
    loaded = load_runner(runner)
    url = session.store_url(store, runner=loaded)
    _follow(run_id, url, runner, is_json, lambda engine: engine.retry(loaded, run_id), is_existing=True)


def fork(
    run_id: options.RunId,
    runner: options.Runner,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            "--checkpoint",
            metavar="ID",
            help="Where to branch (see inspect). Default: the last step.",
            show_default=False,
        ),
    ] = None,
    given: Input = None,
    given_file: InputFile = None,
    given_changes: Set = None,
    new_id: Annotated[
        str | None, typer.Option("--id", "--new-id", metavar="RUN_ID", help="The new run's id.", show_default=False)
    ] = None,
    store: options.Store = None,
    is_json: options.Json = False,
) -> None:
    """Branch a run into a new one. The source is not touched. A new input starts a workflow from the beginning; a
    chain goes on from the checkpoint, and the keys of the input are set in its state.
    """
    from perdure.core import ids

    has_input, value = _input(given, given_file)
    made = changes.parse_changes(given_changes or ())
    loaded = load_runner(runner)
    _refuse_stateless(loaded, made)
    chosen = ids.run_id() if new_id is None else ids.check_id(new_id, "--id")
    options_ = _fork_options(loaded, checkpoint, has_input, value)

    async def work(engine: Engine) -> RunResult[Any]:
        patch = None
        if _has_state(loaded):
            given_state = value if has_input else None
            patch = await _patch(engine, loaded, run_id, made, _at_checkpoint(checkpoint), given_state)
        return await engine.fork(loaded, run_id, new_id=chosen, state_patch=patch, **options_)

    url = session.store_url(store, runner=loaded)
    _refuse_missing(url, run_id)
    _follow(chosen, url, runner, is_json, work)


def _fork_options(runner: Runner, checkpoint: str | None, has_input: bool, value: Any) -> dict[str, Any]:
    """What an input means to the runner: a chain has a state to set its keys in, a workflow begins with it."""
    if _has_state(runner):
        if has_input and not isinstance(value, dict):
            raise InvalidInputError("--input", f"sets keys of a chain's state: an object, not {shown(value)}")
        return {"checkpoint_id": checkpoint}
    if has_input and checkpoint is not None:
        raise InvalidInputError("--input", "starts from the beginning, --checkpoint does not; use one of the two")
    return {"checkpoint_id": checkpoint, "value": value, "has_value": has_input}


def cancel(
    run_id: options.RunId,
    store: options.Store = None,
    db_path: options.DbPath = None,
    is_json: options.Json = False,
) -> None:
    """Ask a run to be cancelled. What it has done stays done and recorded."""
    url = session.store_url(store, db_path)
    _refuse_missing(url, run_id)

    async def work() -> tuple[str, bool]:
        async with session.reading(url) as opened:
            # A run whose owner is dead is nobody's: it is cancelled now, not when somebody takes it up.
            found = await opened.run_get(run_id)
            dead = [] if found is None else await dead_owners(opened, found.worker_id)
            row = await opened.run_cancel(run_id, cancelled_by=session.user(), dead_workers=dead)
            return row.status, row.cancel_requested

    status, is_requested = session.run_async(work)
    is_over = status in ("completed", "failed")
    document = {"run_id": run_id, "status": status, "is_requested": is_requested and not is_over}
    said = "is cancelled" if status == "cancelled" else f"is {status}; its worker will end it as cancelled"
    emit_lines(is_json, document, [] if is_over else [f"Run {run_id} {said}."])
    if is_over:
        complain(f"run {run_id} is {status}: there is nothing to cancel")
        raise typer.Exit(Exit.ALREADY_RESUMED)


# --- changing a state -------------------------------------------------------------------------------------


def _has_state(runner: Runner) -> bool:
    return callable(getattr(runner, "encode_patch", None))


def _refuse_stateless(runner: Runner, made: Sequence[Change]) -> None:
    if made and not _has_state(runner):
        raise InvalidInputError("--set", f"{runner.name} is a {runner.kind}: only a chain has a state to change")


async def _patch(
    engine: Engine,
    runner: Any,
    run_id: str,
    made: Sequence[Change],
    state_of: Callable[[Loaded], dict[str, Any]],
    given: dict[str, Any] | None = None,
) -> str | None:
    """The changes as they are recorded. A path into a part of the state starts from what that part is in the run."""
    if not made:
        return None if given is None else runner.encode_patch(None, given)
    state: dict[str, Any] = {}
    if any(len(change.segments) > 1 for change in made):
        loaded = await engine.store.run_load(run_id)
        if loaded.run.runner != runner.name:
            return None  # another runner's run, whose state says nothing: the engine refuses it
        state = state_of(loaded)
    return runner.encode_patch(changes.applied(made, state), given)


def _at_checkpoint(checkpoint: str | None) -> Callable[[Loaded], dict[str, Any]]:
    return lambda loaded: changes.state_at(loaded, seq=fork_point(loaded, checkpoint))


def _at_question(interrupt: str | None) -> Callable[[Loaded], dict[str, Any]]:
    def state_of(loaded: Loaded) -> dict[str, Any]:
        pending = [row for row in loaded.interrupts if row.status == "pending"]
        named = [row for row in pending if row.interrupt_id == interrupt] if interrupt else pending
        return changes.state_at(loaded, question=named[0] if len(named) == 1 else None)

    return state_of


# --- following a run --------------------------------------------------------------------------------------


def _follow(
    run_id: str,
    url: str,
    runner: str,
    is_json: bool,
    call: Callable[[Engine], Awaitable[RunResult[Any]]],
    *,
    is_existing: bool = False,
    is_answer_missing: bool = False,
) -> None:
    """Make one call on an engine of our own; show the result, or that the run has failed."""
    if is_existing:
        _refuse_missing(url, run_id)

    async def work() -> RunResult[Any] | BaseException:
        import perdure

        # The loop is this command's own, so commits may be made on it: there is nobody whom that would hold up.
        async with perdure.open_engine(url, is_inline=True) as engine:
            try:
                return await call(engine)
            except ChainResumeError:
                if is_answer_missing:
                    await _refuse_silence(engine, run_id)
                raise
            except Exception as error:
                if await _has_failed(engine, run_id, error):
                    return error
                raise

    outcome = session.run_async(work)
    if isinstance(outcome, BaseException):
        _show_failure(run_id, outcome, runner, url, is_json)
        raise typer.Exit(Exit.RUN_FAILED)
    document = {"run_id": outcome.execution_id, "status": outcome.status, "output": plain(outcome.output)}
    document["pending_interrupts"] = outcome.pending_interrupts
    emit_lines(is_json, document, _result_lines(outcome, runner, url))


async def _refuse_silence(engine: Engine, run_id: str) -> None:
    """Say which questions are open. None of them is answered by default."""
    open_rows = await engine.store.interrupt_list(run_id=run_id, status="pending", limit=100)
    if open_rows:
        asked = "; ".join(f"{row.interrupt_id} {decoded(row.reason)}" for row in open_rows)
        raise InvalidInputError("--value", f"is missing: run {run_id} waits for an answer to {asked}")


async def _has_failed(engine: Engine, run_id: str, error: Exception) -> bool:
    """Whether the error is what the run itself failed with, and not a refusal of what was asked of it."""
    if exit_code(error) not in (Exit.DEFECT, Exit.RUN_FAILED, Exit.INVALID) or isinstance(error, ChainResumeError):
        return False
    row = await engine.store.run_get(run_id)
    return row is not None and row.status in ("failed", "cancelled")


def _show_failure(run_id: str, error: BaseException, runner: str, url: str, is_json: bool) -> None:
    name, message = _name_and_message(error)
    document: dict[str, Any] = {
        "run_id": run_id,
        "status": "failed",
        "error": {"type": name, "message": message},
    }
    emit_lines(is_json, document, [])
    complain(f"run {run_id} has failed: {name}: {message}")
    if not is_json:
        complain(f"another attempt: {command('retry', run_id, '--runner', runner, url=url)}")


def _name_and_message(error: BaseException) -> tuple[str, str]:
    if isinstance(error, OperationError):
        return error.type_name, error.message
    return type(error).__qualname__, str(error)


def _result_lines(result: RunResult[Any], runner: str, url: str) -> list[str]:
    run_id = result.execution_id
    if result.status == "completed":
        return [f"Run {run_id} is completed.", json.dumps(plain(result.output), indent=2, ensure_ascii=False)]
    count = len(result.pending_interrupts)
    lines = [f"Run {run_id} is paused: {count} open question{'' if count == 1 else 's'}."]
    for question in result.pending_interrupts:
        lines += [f"  {question['interrupt_id']}  {question['reason']}", f"    {shown(question['context'])}"]
    address = ["--interrupt", result.pending_interrupts[0]["interrupt_id"]] if count > 1 else []
    answer = command("resume", run_id, "--runner", runner, *address, url=url)
    return [*lines, "Answer with:", f"  {answer} --value '{{\"approved\": true}}'"]


def _answer_only(run_id: str, answer: Any, interrupt: str | None, url: str, is_json: bool) -> None:
    """Store the answer; whoever has the runner goes on."""
    if answer is None:
        raise InvalidInputError("--runner", "is missing: without an answer (--value) there is nothing else to do")
    _refuse_missing(url, run_id)

    async def work() -> tuple[str, str]:
        import perdure

        async with perdure.open_engine(url) as engine:
            await engine.answer(run_id, answer, interrupt_id=interrupt, answered_by=session.user())
            row = await engine.store.run_get(run_id)
            assert row is not None  # it has just been answered
            return row.status, row.runner

    status, name = session.run_async(work)
    emit_lines(
        is_json,
        {"run_id": run_id, "status": status, "runner": name},
        [f"The answer is stored. A worker that has {name} goes on with run {run_id}."],
    )


def command(*words: str, url: str) -> str:
    """A command line of ours that a shell takes as it is, with the store where it is needed."""
    import shlex

    return shlex.join(["perdure", *words, *session.address(url)])


def _refuse_missing(url: str, run_id: str) -> None:
    if file := session.missing_file(url):
        from perdure.errors import ChainCheckpointError

        raise ChainCheckpointError(f"no run {run_id}: there is no store at {file}")


def _refuse_no_input(runner: Runner) -> None:
    """A runner that takes an input does not get nothing by default. `--input null` is nothing, said aloud."""
    import inspect

    if not callable(runner):
        return  # what it takes cannot be seen
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    for each in inspect.signature(runner).parameters.values():
        if each.default is each.empty and each.kind not in kinds:
            raise InvalidInputError("--input", f"is missing: {runner.name} takes {each.name}")


def _input(text: str | None, file: str | None) -> tuple[bool, Any]:
    """Whether an input was given, and which."""
    if text is not None and file is not None:
        raise InvalidInputError("--input-file", "is given beside --input; use one of the two")
    if text is not None:
        return True, parse_json(text, "--input")
    if file is None:
        return False, None
    try:
        content = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError("--input-file", f"{file}: {error}") from error
    return True, parse_json(content, "--input-file")
