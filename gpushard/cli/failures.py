"""How a command ends: its exit status, and one sentence if it fails."""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import typer

from gpushard.cli.limits import limit_hint
from gpushard.cli.output import print_json, say, stdout_as_a_store
from gpushard.errors import CorruptShardError, GpushardError, StoreError

EXIT_DAMAGED = 1
EXIT_FAILED = 2
EXIT_INTERRUPTED = 130
# The status that a shell shows for a program ended by SIGPIPE: the reader stopped.
EXIT_CUT_OFF = 141


def exit_status(program: Callable[[], Any]) -> int:
    """Exit status of a program that ends by `SystemExit`, with its output written."""
    _open_closed_streams()
    status: Any = EXIT_FAILED
    is_cut_off = False
    try:
        with stdout_as_a_store():
            program()
    except SystemExit as ended:
        # typer would exit with 1, which means damage; a reader that stops is none.
        is_cut_off = isinstance(ended.__context__, BrokenPipeError)
        status = EXIT_CUT_OFF if is_cut_off else ended.code
    except StoreError as error:  # typer prints the help and the version
        say(str(error))
    except KeyboardInterrupt:  # before a command begins
        say("interrupted.")
        status = EXIT_INTERRUPTED
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            is_cut_off = True
            if stream is sys.stdout:  # of stderr only messages are lost
                status = status or EXIT_FAILED
        if is_cut_off:
            # Otherwise Python would try to write the rest again, and exit with its own
            # status.
            with suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    return status or 0


def _open_closed_streams() -> None:
    """Replace streams that the caller has closed by streams that discard everything."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - until the end


@contextmanager
def failures_in_a_sentence(*, debug: bool, as_json: bool = False) -> Iterator[None]:
    """Turn errors of the block into a sentence on stderr and an exit status.

    With `as_json` an error is also printed as an object on stdout, so the block must
    print nothing there before.

    Raises
    ------
    typer.Exit
        With `EXIT_DAMAGED` for a `CorruptShardError`, with `EXIT_INTERRUPTED` for
        Ctrl-C, else with `EXIT_FAILED`.
    """
    try:
        yield
    except (typer.Exit, BrokenPipeError):
        raise
    except KeyboardInterrupt:
        say("interrupted.")
        raise typer.Exit(EXIT_INTERRUPTED) from None
    except Exception as error:  # noqa: BLE001 - a bug must not look like damage
        if debug:
            traceback.print_exc(file=sys.stderr)
        if isinstance(error, GpushardError):
            error.hint = limit_hint(error.hint)
        code = EXIT_DAMAGED if isinstance(error, CorruptShardError) else EXIT_FAILED
        sentence = _sentence(error)
        if as_json:
            with suppress(GpushardError, OSError):
                print_json({"error": _error_facts(error, sentence)})
        say(sentence)
        raise typer.Exit(code) from None


def _sentence(error: Exception) -> str:
    if isinstance(error, GpushardError):
        return str(error)
    reason = f": {error}" if str(error) else ""
    if isinstance(error, MemoryError):
        return f"there is not enough memory{reason}."
    if isinstance(error, FileNotFoundError) and _is_here_gone():
        return "the working directory was deleted; change to a directory that exists."
    # Of a library, such as zarr's event loop; stores tell of their own files.
    if isinstance(error, OSError) and error.errno == errno.EMFILE:
        return "too many files are open; raise the limit of open files (ulimit -n)."
    return (
        f"an unexpected {type(error).__name__}{reason.rstrip('.')}; this is a defect of"
        " gpushard, please report it with what --debug shows."
    )


def _is_here_gone() -> bool:
    """Whether the directory that relative paths begin at was deleted."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


_ERROR_FIELDS = (
    *("what", "store_url", "array_path", "node_type", "shard_key"),
    *("inner_chunk", "codec", "json_path", "expected", "got", "hint"),
)


def _error_facts(error: Exception, sentence: str) -> dict[str, Any]:
    """Type, sentence, and the non-empty fields of an error."""
    fields = {name: getattr(error, name, None) for name in _ERROR_FIELDS}
    known = {name: value for name, value in fields.items() if value is not None}
    plain = (str, int, float, tuple, list)
    values = {n: v if isinstance(v, plain) else str(v) for n, v in known.items()}
    return {"type": type(error).__name__, "message": sentence, **values}
