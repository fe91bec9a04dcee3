"""The command `perdure`: its commands, and how an error ends it.

Everything that a command needs is imported when it is called, so that it starts at once.
"""

from __future__ import annotations

import io
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import typer

import perdure
from perdure.cli.exits import Exit, exit_code, table
from perdure.cli.output import complain, emit_lines, only_documents
from perdure.cli.session import Stopped
from perdure.errors import PerdureError

# The base of all usage errors; not public under a name of its own in every version.
_UsageError: Any = typer.BadParameter.__mro__[1]

_EPILOG = f"Exit codes:\n\n\b\n{table()}"

_COMMANDS = {
    "demo": "demo:demo",
    "run": "execution:run",
    "resume": "execution:resume",
    "list-pending": "listing:list_pending",
    "inspect": "inspection:inspect",
    "runs": "listing:runs",
    "fork": "execution:fork",
    "cancel": "execution:cancel",
    "retry": "execution:retry",
    "worker": "working:worker",
    "prune": "pruning:prune",
    "setup-checkpointer": "setup:setup_checkpointer",
    "doctor": "diagnosis:doctor",
}
"""Where each command is. Only the module of the one that is called is loaded."""


def build(names: Sequence[str] = tuple(_COMMANDS)) -> typer.Typer:
    """The application with these commands."""
    # No rich in the help: it would take longer to load than most commands take to run.
    app = typer.Typer(
        name="perdure",
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        add_completion=True,
        epilog=_EPILOG,
    )
    app.callback()(_top)
    for name in names:
        module, _, function = _COMMANDS[name].partition(":")
        app.command(name)(getattr(import_module(f"perdure.cli.{module}"), function))
    return app


def _show_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"perdure {perdure.__version__}")
        raise typer.Exit()


def _top(
    version: bool = typer.Option(
        False, "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
    ),
) -> None:
    """Runs that survive crashes, wait days for a person, and never do a recorded thing twice."""


def main() -> None:
    """The entry point. Ends the process with a code of `cli.exits`."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal that lacks a character still shows the line
    warnings.showwarning = _show_warning
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command; returns its exit code."""
    is_json = "--json" in arguments
    is_known = bool(arguments) and arguments[0] in _COMMANDS
    command = typer.main.get_command(build(arguments[:1]) if is_known else build())
    try:
        with only_documents(is_json):
            ended = command.main(args=list(arguments) or ["--help"], prog_name="perdure", standalone_mode=False)
        sys.stdout.flush()
        return ended if isinstance(ended, int) else Exit.OK
    except typer.Exit as exit:
        return exit.exit_code
    except Stopped as stopped:
        complain(f"ended by {stopped}; runs that were in progress here go on elsewhere, or with resume")
        return 128 + stopped.number
    except (KeyboardInterrupt, typer.Abort):
        return Exit.INTERRUPTED
    except BrokenPipeError:
        # Whoever read stdout has gone (`| head`); nothing more can be said there, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.OK
    except _UsageError as error:
        return _refuse(is_json, "usage", error.format_message(), Exit.INVALID)
    except PerdureError as error:
        return _refuse(is_json, error.code, str(error), exit_code(error))
    except Exception as error:
        traceback.print_exc()
        return _refuse(is_json, "defect", f"{type(error).__qualname__}: {error}", Exit.DEFECT)


def _refuse(is_json: bool, code: str, message: str, exit: Exit) -> int:
    if is_json:
        emit_lines(True, {"error": {"code": code, "message": message}}, [])
    complain(message)
    return exit


def _show_warning(message: Warning | str, category: type[Warning], *_: object) -> None:
    complain(f"{category.__name__}: {message}")


if __name__ == "__main__":
    main()
