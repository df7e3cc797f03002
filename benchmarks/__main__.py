"""`python -m benchmarks`: measure, print a table, draw charts."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks import chart, remote, scaling, small, table, writing
from benchmarks.configs import CODECS, DATASETS, INNER_NBYTES, KIB, MIB, configs
from benchmarks.contenders import ALL
from benchmarks.machine import commit, load, machine
from benchmarks.runner import Settings, Suite

_RESULTS = Path(__file__).parent / "results"
_QUICK: dict[str, Any] = {
    "nbytes": 16 * MIB,
    "inner": [4 * KIB, 32 * KIB],
    "codecs": ["none", "zstd", "blosc-lz4"],
    "repetitions": 5,
    "budget_s": 0.25,
}
_FULL: dict[str, Any] = {
    "nbytes": 256 * MIB,
    "inner": list(INNER_NBYTES),
    "codecs": list(CODECS),
    "repetitions": 9,
    "budget_s": 10.0,
}

# What the table and the charts are made of.
_PARTS = {"date", "commit", "machine", "load", "versions", "absent", "rows"}
_CELLS = {"dataset", "inner_nbytes", "codec", "workload", "cache", "contenders"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0, or 1 when a contender gave other elements than are stored."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    commands = {
        "chart": _chart,
        "table": _table,
        "scaling": _scaling,
        "small": _small,
        "writing": _writing,
        "remote": _remote,
    }
    command = commands.get(given[0]) if given else None
    return _measure(given) if command is None else command(given[1:])


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _as_text(result: dict[str, Any]) -> str:
    """A result as JSON, a line for each row."""
    head = json.dumps({k: v for k, v in result.items() if k != "rows"}, indent=1)
    rows = ",\n  ".join(json.dumps(row) for row in result["rows"])
    return f'{head[:-2]},\n "rows": [\n  {rows}\n ]\n}}\n'


def _result_in(path: str) -> dict[str, Any]:
    """A result of `python -m benchmarks`, read from its file."""
    try:
        result = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        told = f"cannot read {path!r}: {error.strerror}"
        raise argparse.ArgumentTypeError(told) from None
    except (ValueError, RecursionError) as error:  # also text in no UTF-8
        told = f"{path!r} is not JSON, or not all of it: {error}"
        raise argparse.ArgumentTypeError(told) from None
    if not _is_table(result):
        raise argparse.ArgumentTypeError(
            f"{path!r} is no result of this command; make one: python -m benchmarks"
            " --quick"
        )
    return result


def _is_table(result: Any) -> bool:
    """Whether JSON is a result with a row for each array and workload.

    The other suites keep other figures, some of them also under ``rows``.
    """
    if not isinstance(result, dict) or not result.keys() >= _PARTS:
        return False
    rows = result["rows"]
    return isinstance(rows, list) and all(
        isinstance(row, dict) and row.keys() >= _CELLS for row in rows
    )


def _chart(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks chart")
    parser.add_argument("result", type=_result_in)
    parser.add_argument("--out", type=Path, default=Path("charts"))
    parser.add_argument("--format", choices=("png", "svg"), default="svg")
    given = parser.parse_args(arguments)
    try:
        drawn = chart.draw(given.result, given.out, given.format)
    except ModuleNotFoundError as error:
        parser.error(f"{error.name} is missing; run: pip install '.[bench]'")
    except OSError as error:
        parser.error(f"cannot write to {str(given.out)!r}: {error.strerror}")
    for path in drawn:
        _say(str(path))
    return 0


def _table(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks table")
    parser.add_argument("result", type=_result_in)
    _say(table.render(parser.parse_args(arguments).result))
    return 0


def _scaling(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks scaling")
    parser.add_argument("--nbytes", type=int, default=scaling.DEFAULT_NBYTES)
    parser.add_argument("--repetitions", type=int, default=scaling.REPETITIONS)
    parser.add_argument("--out", type=Path, help="result file")
    given = parser.parse_args(arguments)
    result = scaling.measure(given.nbytes, given.repetitions)
    _keep(result, given.out)
    _say(scaling.render(result))
    return 0


def _small(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks small")
    parser.add_argument("--reads", type=int, default=small.READS)
    parser.add_argument("--out", type=Path, help="result file")
    given = parser.parse_args(arguments)
    result = small.measure(given.reads)
    _keep(result, given.out)
    _say(small.render(result))
    return 0


def _writing(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks writing")
    add = parser.add_argument
    add("--nbytes", type=int, default=writing.DEFAULT_NBYTES)
    add("--inner", nargs="+", type=int, choices=INNER_NBYTES, default=INNER_NBYTES)
    add("--codecs", nargs="+", choices=CODECS, default=CODECS)
    add("--repetitions", type=int, default=writing.REPETITIONS)
    add("--out", type=Path, help="result file")
    given = parser.parse_args(arguments)
    result = writing.measure(
        given.nbytes, given.inner, given.codecs, given.repetitions, _say
    )
    _keep(result, given.out)
    _say(writing.render(result))
    return 0


def _remote(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks remote")
    add = parser.add_argument
    usual, names = remote.Settings(), {n.name: n for n in remote.NETWORKS}
    add("--nbytes", type=int, default=usual.nbytes)
    add("--inner", nargs="+", type=int, choices=INNER_NBYTES)
    add("--codecs", nargs="+", choices=CODECS, default=usual.codecs)
    add("--networks", nargs="+", choices=names, default=list(names))
    add("--contenders", nargs="+", choices=remote.CONTENDERS)
    add("--repetitions", type=int, default=usual.repetitions)
    add("--out", type=Path, help="result file")
    given = parser.parse_args(arguments)
    settings = remote.Settings(
        given.nbytes,
        given.inner or usual.inner_nbytes,
        given.codecs,
        [names[name] for name in given.networks],
        given.contenders or usual.contenders,
        given.repetitions,
    )
    result = remote.measure(settings, _say)
    _keep(result, given.out)
    _say(remote.render(result))
    return 1 if remote.wrong_answers(result) else 0


def _keep(result: dict[str, Any], out: Path | None) -> None:
    """Write a result to a file, with the date, if one is asked for."""
    if out is not None:
        dated = {"date": datetime.now(UTC).isoformat(timespec="minutes"), **result}
        out.write_text(json.dumps(dated, indent=1) + "\n", encoding="utf-8")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure gpushard beside its CPU peers.",
        epilog="See also: chart, table, scaling, small, writing, remote.",
    )
    add = parser.add_argument
    add("--quick", action="store_true", help="part of the table, under two minutes")
    add("--cold", action="store_true", help="also from an empty page cache")
    add("--unsharded", action="store_true", help="inner chunks as files, not in shards")
    add("--nbytes", type=int, help="decoded bytes of each array")
    add("--datasets", nargs="+", choices=DATASETS, default=list(DATASETS))
    add("--inner", nargs="+", type=int, choices=INNER_NBYTES, metavar="NBYTES")
    add("--codecs", nargs="+", choices=CODECS)
    add("--contenders", nargs="+", choices=ALL, default=list(ALL))
    add("--repetitions", type=int)
    add("--budget-s", type=float, help="seconds per contender and row")
    add("--dir", type=Path, help="where arrays are written during the run")
    add("--out", type=Path, help="result file; else one in benchmarks/results")
    return parser


def _measure(arguments: list[str]) -> int:
    parsed = _parser().parse_args(arguments)
    defaults = _QUICK if parsed.quick else _FULL
    given = {k: v for k, v in vars(parsed).items() if v is not None}
    chosen: dict[str, Any] = {"dir": None, **defaults, **given}
    settings = Settings(
        tuple(chosen["contenders"]),
        chosen["repetitions"],
        chosen["budget_s"],
        chosen["cold"],
        chosen["dir"],
    )
    matrix = configs(
        tuple(chosen["datasets"]),
        tuple(chosen["inner"]),
        tuple(chosen["codecs"]),
        chosen["nbytes"],
        is_sharded=not chosen["unsharded"],
    )
    started, load_before, suite = datetime.now(UTC), load(), Suite(settings)
    suite.run(matrix, _say)
    result = {
        "date": started.isoformat(timespec="minutes"),
        "seconds": round((datetime.now(UTC) - started).total_seconds(), 1),
        "commit": commit(),
        "machine": machine(),
        "load": [load_before, load()],
        "nbytes": chosen["nbytes"],
        "repetitions": chosen["repetitions"],
        "versions": suite.versions,
        "absent": suite.absent,
        "rows": suite.rows,
    }
    kind = "quick" if parsed.quick else "full"
    out = parsed.out or _RESULTS / f"{started.date()}-{kind}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(_as_text(result), encoding="utf-8")
    _say(f"{table.render(result)}\n{out}")
    return 1 if table.wrong_answers(suite.rows) else 0


if __name__ == "__main__":
    sys.exit(main())
