"""Secrets: the context a run is started in is not part of the run, and nothing of it reaches the store."""

from __future__ import annotations

import contextvars
import logging
from pathlib import Path
from typing import Any

import pydantic
import pytest

from perdure import Resume, SerializationError, interrupt, open_engine, step, workflow

_CANARY = "canary-8c1f-token"

token: contextvars.ContextVar[str] = contextvars.ContextVar("token")


def _found(path: Path) -> list[str]:
    """Files of the store that contain the canary."""
    return [file.name for file in path.iterdir() if file.is_file() and _CANARY.encode() in file.read_bytes()]


async def test_G2_runtime_context_is_not_stored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A token in a context variable, in the environment of a body and in closed-over objects leaves no trace in the
    database, its WAL, the events or the logs."""
    caplog.set_level(logging.DEBUG)
    client = {"authorization": _CANARY}

    async def call_api(path: str) -> str:
        assert client["authorization"] == _CANARY
        return path.upper()

    async def fails() -> None:
        header = client["authorization"]
        raise ConnectionError(f"refused a header of {len(header)} characters")

    @workflow
    async def g2_calls(path: str) -> list[Any]:
        said: list[Any] = [await step(call_api, path)]
        try:
            await step(fails)
        except ConnectionError as error:
            said.append(str(error))
        said.append(interrupt("go on?", {"path": path}).approved)
        return said

    token.set(_CANARY)
    async with open_engine(f"sqlite:///{tmp_path / 'perdure.db'}") as engine:
        paused = await engine.run(g2_calls, "/orders")
        assert _found(tmp_path) == []
        result = await engine.resume(g2_calls, paused.execution_id, resume_value=Resume(approved=True))
        events = [repr(event) async for event in engine.stream(paused.execution_id)]
    assert len(result.output) == 3
    assert _found(tmp_path) == []
    assert not any(_CANARY in text for text in [*events, caplog.text])


class _Login(pydantic.BaseModel):
    user: str
    password: pydantic.SecretStr


@pytest.mark.filterwarnings("ignore::UserWarning")
async def test_G2_secret_types_are_refused_or_kept_secret(tmp_path: Path) -> None:
    """A value of a secret type is not written in the clear: it is refused by name, as argument and as
    result."""
    ran: list[str] = []

    async def login(value: Any) -> None:
        ran.append("login")

    async def make() -> _Login:
        return _Login(user="ann", password=pydantic.SecretStr(_CANARY))

    @workflow
    async def g2_logs_in(_: None) -> list[str]:
        said = []
        for value in (pydantic.SecretStr(_CANARY), _Login(user="ann", password=pydantic.SecretStr(_CANARY))):
            try:
                await step(login, value)
            except SerializationError as error:
                said.append(str(error))
        try:
            await step(make)
        except SerializationError as error:
            said.append(str(error))
        return said

    async with open_engine(f"sqlite:///{tmp_path / 'perdure.db'}") as engine:
        result = await engine.run(g2_logs_in)
        assert _found(tmp_path) == []
    assert _found(tmp_path) == []
    assert len(result.output) == 3
    assert ran == []


async def test_G2_url_password_is_not_shown(postgres_dsn: str) -> None:
    """The password of a store's URL is in no error message about runs."""
    with_password = postgres_dsn.replace("postgres@", f"postgres:{_CANARY}@", 1)

    @workflow
    async def g2_any(_: None) -> None: ...

    async with open_engine(with_password) as engine:
        with pytest.raises(Exception, match="no run nowhere") as unknown:
            await engine.resume(g2_any, "nowhere")
    assert _CANARY not in str(unknown.value)
