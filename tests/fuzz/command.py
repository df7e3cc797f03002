"""The command: one target under atheris, or single inputs once more."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from fuzz import running

KERNELS, TABLES = "kernels", "tables"
# Their modules have a function `explored`.
HISTORIES = {
    "histories": "histories",
    "device_histories": "device_histories",
    "groups": "group_histories",
}
KEPT = Path(__file__).resolve().parents[2] / ".pytest_cache" / "fuzz"


def main() -> None:
    arguments = parsed()
    if arguments.target == KERNELS:
        # Not before: what it imports of gpushard would not be instrumented.
        from fuzz.kernels import fuzz_kernels

        fuzz_kernels(arguments.runs, arguments.seed)
    elif arguments.target == TABLES and not arguments.inputs:
        from fuzz.sanitized import fuzz_tables

        fuzz_tables(arguments.runs, arguments.seed)
    elif arguments.target in HISTORIES:
        module = import_module(f"fuzz.{HISTORIES[arguments.target]}")
        done = module.explored(arguments.runs, arguments.seed)
        tell(f"{arguments.runs} histories: {dict(done)}")
    elif arguments.inputs:
        replay(running.load(arguments.target), arguments.inputs)
    else:
        fuzz(arguments)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python tests/fuzz", description=main.__doc__)
    parser.add_argument(
        "target", choices=[*running.TARGETS, KERNELS, TABLES, *HISTORIES]
    )
    parser.add_argument("inputs", nargs="*", type=Path, help="run only these files")
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--within", default="gpushard", help="whose branches count")
    parser.add_argument("--corpus", type=Path, help="default: below .pytest_cache")
    parser.add_argument("--findings", type=Path, default=KEPT)
    return parser.parse_args()


def replay(target: ModuleType, inputs: list[Path]) -> None:
    """Run single inputs, with the traceback of a finding."""
    for path in inputs:
        accepted = running.checked(target, path.read_bytes())
        tell(f"{path}: {'accepted' if accepted else 'refused'}")


def fuzz(arguments: argparse.Namespace) -> None:
    """Run a target under atheris, which ends the process."""
    if find_spec("atheris") is None:
        sys.exit("fuzzing needs atheris: pip install '.[fuzz]'")
    target, atheris = running.load_instrumented(arguments.target, arguments.within)
    words, corpus = prepared(target, arguments.corpus or KEPT / arguments.target)
    counts = {True: 0, False: 0}

    def one_input(data: bytes) -> None:
        counts[running.checked(target, data)] += 1
        n = sum(counts.values())
        if n == arguments.runs:  # the process ends without a way back
            tell(f"{n} inputs: {counts[True]} accepted, {counts[False]} refused")

    arguments.findings.mkdir(parents=True, exist_ok=True)
    flags = [
        f"-runs={arguments.runs}",
        f"-seed={arguments.seed}",
        f"-artifact_prefix={arguments.findings}/",
        f"-dict={words}",
        f"-timeout={running.LIMIT_S}",
        "-max_len=8192",
        "-mutate_depth=2",
        "-rss_limit_mb=4096",
    ]
    mutator = running.mutator(target, atheris)
    options = {} if mutator is None else {"custom_mutator": mutator}
    atheris.Setup([sys.argv[0], *flags, str(corpus)], one_input, **options)
    with running.bounded_memory(target):
        atheris.Fuzz()


def prepared(target: ModuleType, place: Path) -> tuple[Path, Path]:
    """Dictionary and corpus of a target, the seeds among what earlier runs found."""
    corpus = place / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    for k, seed in enumerate(target.seeds()):
        (corpus / f"seed-{k}").write_bytes(seed)
    words = place / "words"
    words.write_text(running.dictionary(target))
    return words, corpus


def tell(line: str) -> None:
    sys.stderr.write(f"{line}\n")
