"""`gpushard convert`: any array, or a group of them, to sharded Zarr v3."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpushard.cli.failures import EXIT_INTERRUPTED, failures_in_a_sentence
from gpushard.cli.limits import Limits, options_of
from gpushard.cli.output import (
    AsJson,
    Debug,
    ShowsProgress,
    print_json,
    print_table,
    say,
)
from gpushard.errors import GpushardError, OptionError
from gpushard.options import MIB

if TYPE_CHECKING:
    from gpushard.converting.conversion import ConversionReport

_CODEC_HELP = (
    'keep, none, NAME[:LEVEL] (zstd:5, gzip, blosc-lz4:5), or JSON as in "codecs".'
)
# Replacements in hints of `gpushard.convert`, longer ones first.
_OPTION_NAMES = {
    "see zarr.create_array for what each argument takes": "see gpushard convert --help",
    "pass overwrite=True": "give --overwrite",
    "overwrite=True": "--overwrite",
    "resume=False": "--no-resume",
    "options.memory_limit": "--memory",
    "memory_limit": "--memory",
}
_LEVEL = re.compile(r"-?[0-9]{1,9}")
_SHAPE_HELP = "Lengths such as 8,721,1440, or one for all axes."


_SourceArgument = Annotated[str, typer.Argument(metavar="SRC", help="Array or group.")]
_TargetArgument = Annotated[
    str, typer.Argument(metavar="DST", help="Place to be made.")
]
_Shards = Annotated[
    str | None, typer.Option(metavar="SHAPE", help=f"Shards. {_SHAPE_HELP}")
]
_Chunks = Annotated[
    str | None, typer.Option(metavar="SHAPE", help=f"Inner chunks. {_SHAPE_HELP}")
]
_Compressors = Annotated[
    str, typer.Option(metavar="CODECS", help=f"Compressors: {_CODEC_HELP}")
]
_Filters = Annotated[
    str, typer.Option(metavar="CODECS", help="Filters: keep, none or JSON.")
]
_Location = Annotated[
    str, typer.Option(metavar="end|start", help="Where a shard's index lies.")
]
_Memory = Annotated[
    int | None, typer.Option(metavar="MIB", min=1, help="Most memory, in MiB.")
]
_Threads = Annotated[
    int | None, typer.Option(min=1, help="Worker threads; one a CPU by default.")
]
_Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Delete what is at DST before.")
]
_Resume = Annotated[
    bool,
    typer.Option("--resume/--no-resume", help="Go on with an interrupted conversion."),
]
_Verify = Annotated[
    bool, typer.Option("--verify", help="Read back and compare, bit for bit.")
]


def convert(
    src: _SourceArgument,
    dst: _TargetArgument,
    *,
    shards: _Shards = None,
    chunks: _Chunks = None,
    compressors: _Compressors = "keep",
    filters: _Filters = "keep",
    index_location: _Location = "end",
    memory: _Memory = None,
    threads: _Threads = None,
    overwrite: _Overwrite = False,
    resume: _Resume = True,
    verify: _Verify = False,
    progress: ShowsProgress = None,
    limit: Limits = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Convert an array, or all arrays of a group, to sharded Zarr v3."""
    with failures_in_a_sentence(debug=debug, as_json=as_json):
        target: dict[str, Any] = {
            "shards": _shape(shards, "--shards"),
            "chunks": _shape(chunks, "--chunks"),
            "compressors": _codecs(compressors, "--compressors"),
            "filters": _codecs(filters, "--filters"),
            "index_location": index_location,
        }
        # Imported here, because `--help` needs neither NumPy nor the reader.
        import gpushard

        try:
            report = gpushard.convert(
                src,
                dst,
                memory_limit=None if memory is None else memory * MIB,
                num_threads=threads,
                options=options_of(limit),
                overwrite=overwrite,
                resume=resume,
                verify=verify,
                progress=sys.stderr.isatty() if progress is None else progress,
                **target,
            )
        except GpushardError as error:
            error.hint = _in_words_of_options(error.hint)
            raise
        except KeyboardInterrupt:
            say("interrupted; repeat the command to go on where it was.")
            raise typer.Exit(EXIT_INTERRUPTED) from None
        if as_json:
            print_json(_facts(src, dst, report))
        else:
            print_table(_rows(dst, report))


def _in_words_of_options(hint: str | None) -> str | None:
    """A hint in the words of the command line."""
    for argument, option in _OPTION_NAMES.items():
        hint = hint and hint.replace(argument, option)
    return hint


def _facts(src: str, dst: str, report: ConversionReport) -> dict[str, Any]:
    return {
        "src": src,
        "dst": dst,
        "seconds": report.seconds,
        "verified": report.verified,
        "arrays": {path: asdict(array) for path, array in report.arrays.items()},
    }


def _rows(dst: str, report: ConversionReport) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [
        ("array", "shards", "inner chunks", "bytes", "written", "before")
    ]
    rows += [
        (
            path or dst,
            f"{array.n_shards:,} of {array.shards}",
            str(array.chunks),
            f"{array.nbytes:,}",
            f"{array.n_written:,}",
            f"{array.n_resumed:,}",
        )
        for path, array in report.arrays.items()
    ]
    verified = ", verified bit for bit" if report.verified else ""
    return [*rows, (f"{report.seconds:.1f} s{verified}",)]


def _shape(text: str | None, option: str) -> Any:
    """A shape as it was typed; the converter checks it."""
    if text is None:
        return None
    parts = text.strip("()[] ").split(",")
    try:
        lengths = tuple(int(part) for part in parts if part.strip())
    except ValueError as error:
        raise OptionError(
            f"{option} is no shape", expected="such as 8,721,1440", got=repr(text)
        ) from error
    return lengths[0] if len(lengths) == 1 and "," not in text else lengths


def _codecs(text: str, option: str) -> Any:
    """Codecs in the form that `convert` takes."""
    if text == "keep":
        return text
    if text == "none":
        return None
    if text.startswith(("[", "{")):
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise OptionError(
                f"{option} is no valid JSON: {error}", got=repr(text)
            ) from error
    name, _, level = text.partition(":")
    if option == "--filters":  # no name says enough: most filters need a data type
        raise OptionError(
            f"{option} is no list of filters",
            expected="keep, none or JSON",
            got=repr(text),
        )
    if level and not _LEVEL.fullmatch(level):
        raise OptionError(f"{option} has no such level", got=repr(level))
    return _named_codec(name, int(level) if level else None, option)


def _named_codec(name: str, level: int | None, option: str) -> dict[str, Any]:
    if name in ("zstd", "gzip"):
        configuration: dict[str, Any] = {"level": 5 if level is None else level}
        if name == "zstd":
            configuration["checksum"] = False
        return {"name": name, "configuration": configuration}
    kind, _, compressor = name.partition("-")
    if kind == "blosc":
        clevel = 5 if level is None else level
        configuration = {"cname": compressor or "zstd", "clevel": clevel}
        return {"name": "blosc", "configuration": configuration}
    raise OptionError(
        f"{option} names an unknown codec",
        expected="keep, none, zstd, gzip, blosc-lz4, blosc-zstd, ... or JSON",
        got=repr(name),
        hint="give JSON for others",
    )
