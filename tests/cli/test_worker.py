"""The worker as a real process: it continues what others left, and a signal ends it in good order."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.cli.conftest import Ended, environment

from perdure.cli.exits import Exit

Perdure = Callable[..., Ended]
WAITING = ("--runner", "tests.cli.programs:waiting")


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    """A named pipe: a step that reads it waits until somebody writes."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    return path


def _stop(process: subprocess.Popen[str], number: signal.Signals) -> None:
    """Send a signal and return when the process has said that it knows."""
    process.send_signal(number)
    assert process.stderr is not None
    assert any(line.startswith(f"perdure: {number.name}: what has started may end") for line in process.stderr)


@pytest.fixture
def begun(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a command and return when a step of it has said that it has begun."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "perdure", *arguments],
            cwd=tmp_path,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stderr is not None
        said: list[str] = []
        for line in process.stderr:
            said.append(line)
            if line == "begun\n":
                return process
        raise AssertionError(f"it ended before a step had begun: {''.join(said)}")

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_a_worker_continues_the_runs_of_one_that_was_killed(
    perdure: Perdure, begun: Callable[..., subprocess.Popen[str]], store_url: str, pipe: Path
) -> None:
    given = json.dumps(str(pipe))
    first = begun("run", *WAITING, "--input", given, "--id", "r", "--store", store_url)
    first.kill()
    first.wait()
    second = begun("worker", *WAITING, "--until-idle", "--store", store_url, "--json")
    pipe.write_text("hello")

    out, _ = second.communicate()

    assert (second.returncode, json.loads(out)) == (Exit.OK, {"stopped_by": "idle"})
    shown = perdure("inspect", "r", "--store", store_url, "--json").json
    assert (shown["run"]["status"], shown["run"]["output"]) == ("completed", "hello")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_a_signal_ends_a_worker_after_its_started_operations(
    number: signal.Signals,
    perdure: Perdure,
    begun: Callable[..., subprocess.Popen[str]],
    store_url: str,
    pipe: Path,
) -> None:
    first = begun("run", *WAITING, "--input", json.dumps(str(pipe)), "--id", "r", "--store", store_url)
    first.kill()
    first.wait()
    worker = begun("worker", *WAITING, "--store", store_url, "--json")
    _stop(worker, number)
    pipe.write_text("just in time")

    out, _ = worker.communicate()

    assert (worker.returncode, json.loads(out)) == (Exit.OK, {"stopped_by": number.name})
    shown = perdure("inspect", "r", "--store", store_url, "--json").json
    assert shown["operations"][0]["value"] == "just in time"
    assert shown["run"]["status"] == "pending"


def test_a_signal_ends_a_followed_run_with_its_own_code_and_the_run_goes_on_later(
    perdure: Perdure, begun: Callable[..., subprocess.Popen[str]], store_url: str, pipe: Path
) -> None:
    run = begun("run", *WAITING, "--input", json.dumps(str(pipe)), "--id", "r", "--store", store_url)
    _stop(run, signal.SIGTERM)
    pipe.write_text("recorded")
    run.communicate()
    assert run.returncode == Exit.TERMINATED

    resumed = perdure("resume", "r", *WAITING, "--store", store_url, "--json")

    assert (resumed.code, resumed.json["output"]) == (Exit.OK, "recorded")


def test_a_worker_leaves_runs_alone_whose_runner_it_does_not_have(perdure: Perdure, store_url: str) -> None:
    refund = ("--runner", "tests.cli.programs:refund")
    order = '{"id": "A", "amount": 1}'
    perdure("run", *refund, "--input", order, "--id", "r", "--store", store_url)
    perdure("resume", "r", "--value", '{"approved": true}', "--store", store_url)

    assert perdure("worker", *WAITING, "--until-idle", "--store", store_url).code == Exit.OK

    assert perdure("runs", "--store", store_url, "--json").json["runs"][0]["status"] == "pending"


@pytest.mark.parametrize(
    "arguments", [(), ("--runner", "os:getcwd"), (*WAITING, "--concurrency", "0"), WAITING + WAITING]
)
def test_a_worker_needs_runners(arguments: tuple[str, ...], perdure: Perdure) -> None:
    assert perdure("worker", *arguments, "--until-idle").code == Exit.INVALID


# --- doctor -----------------------------------------------------------------------------------------------


def _levels(ended: Ended) -> dict[str, str]:
    return {finding["check"]: finding["level"] for finding in ended.json["findings"]}


def test_doctor_is_content_with_an_ordinary_store(perdure: Perdure, store_url: str) -> None:
    perdure(
        "run",
        "--runner",
        "tests.cli.programs:refund",
        "--input",
        '{"id": "A", "amount": 1}',
        "--store",
        store_url,
    )

    ended = perdure("doctor", "--store", store_url, "--runner", "tests.cli.programs:refund", "--json")

    assert ended.code == Exit.OK
    assert ended.json["is_well"] is True
    assert set(_levels(ended).values()) == {"ok"}
    assert "1 cli_refund waiting" in perdure("doctor", "--store", store_url).out


def test_doctor_names_what_nobody_takes_care_of(perdure: Perdure, store_url: str) -> None:
    refund = ("--runner", "tests.cli.programs:refund")
    perdure("run", *refund, "--input", '{"id": "A", "amount": 1}', "--id", "r", "--store", store_url)
    perdure("resume", "r", "--value", '{"approved": true}', "--store", store_url)

    ended = perdure("doctor", "--store", store_url, *WAITING, "--json")

    levels = _levels(ended)
    assert (levels["left lying"], levels["no runner here"]) == ("warn", "warn")
    assert "1 of cli_refund" in json.dumps(ended.json)


def test_doctor_sees_who_is_alive(
    perdure: Perdure, begun: Callable[..., subprocess.Popen[str]], store_url: str, pipe: Path
) -> None:
    begun("run", *WAITING, "--input", json.dumps(str(pipe)), "--store", store_url)

    workers = [
        each for each in perdure("doctor", "--store", store_url, "--json").json["findings"] if each["check"] == "worker"
    ]

    assert [each["level"] for each in workers] == ["ok"]
    assert "1 run: alive" in workers[0]["detail"]


def test_doctor_fails_where_the_store_cannot_be_used(perdure: Perdure, tmp_path: Path) -> None:
    (tmp_path / "other.db").write_bytes(b"this is not a database" * 100)

    ended = perdure("doctor", "--store", "other.db", "--json")

    assert ended.code == Exit.STORAGE
    assert ended.json["is_well"] is False
