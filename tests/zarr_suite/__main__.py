"""zarr-python's own tests, with gpushard's codec pipeline and with zarr's.

    python tests/zarr_suite [--sdist FILE] [--workers N] [pytest arguments]

Fetches the sdist of the installed zarr from the package index, runs its tests once with
each pipeline as the default, and lists what fails with gpushard's only. Needs what
zarr's tests need beside our own (pytest-asyncio, numpydoc).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections import Counter
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PIPELINES = {
    "zarr": "zarr.core.codec_pipeline.BatchedCodecPipeline",
    "gpushard": "gpushard.GpushardCodecPipeline",
}

# What pytest ends with if all tests pass, or if some fail; else it ran none or not all.
RAN = (0, 1)
NEEDED = "pytest-asyncio numpydoc"

# zarr's tests of how zarr's own pipeline goes about it -> what they look at, and the
# line that has to be the one that fails. Values are compared by all others.
OF_ZARRS_INSIDES = {
    "test_sharding_partial_shard_read__index_chunk_slice_fails": (
        "a method of zarr's `_ShardIndex` that the test replaces",
        "assert a[0] == fill_value",
    ),
}


def fetch_sdist(directory: Path) -> Path:
    """The sdist of the installed zarr, from the package index."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--no-binary", "zarr", "--dest", str(directory)]
    subprocess.run([*command, f"zarr=={version('zarr')}"], check=True)
    return next(directory.glob("zarr-*.tar.gz"))


def unpack(sdist: Path, directory: Path) -> Path:
    """Root of what an sdist holds."""
    directory.mkdir()
    with tarfile.open(sdist) as archive:
        archive.extractall(directory, filter="data")
    return next(path for path in directory.iterdir() if path.is_dir())


def pretend_installed(directory: Path) -> None:
    """Make this checkout's entry points known to all who have `directory` on the path.

    zarr's tests start processes in which nobody has imported gpushard.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = ["[zarr.codec_pipeline]"]
    for name, target in project["entry-points"]["zarr.codec_pipeline"].items():
        lines.append(f"{name} = {target}")
    about = directory / "gpushard-0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: gpushard\nVersion: 0\n"
    )
    (about / "entry_points.txt").write_text("\n".join(lines) + "\n")


def run(root: Path, pipeline: str, arguments: list[str]) -> dict[str, dict]:
    """Outcome of each of zarr's tests under `root` with a pipeline as the default."""
    report = root / f"{pipeline}.json"
    report.unlink(missing_ok=True)
    paths = [str(HERE), str(ROOT), str(root.parent), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "ZARR_CODEC_PIPELINE__PATH": PIPELINES[pipeline],
        "GPUSHARD_ZARR_SUITE_REPORT": str(report),
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "plugin", "-o", "addopts="]
    command += ["--ignore=tests/test_regression/scripts", "--ignore=tests/benchmarks"]
    command += ["--tb=short", *arguments]
    done = subprocess.run(command, cwd=root, env=environment, check=False)
    if done.returncode not in RAN:
        sys.exit(f"zarr's tests did not run; run: pip install {NEEDED}")
    return json.loads(report.read_text())


def summary(outcomes: dict[str, dict]) -> str:
    counts = Counter(test["outcome"] for test in outcomes.values())
    decoded = sum("decoded" in test["counts"] for test in outcomes.values())
    left = sum("left to zarr" in test["counts"] for test in outcomes.values())
    told = ", ".join(f"{n} {outcome}" for outcome, n in counts.most_common())
    return f"{told}; gpushard decoded reads of {decoded} tests, left some of {left}"


def only_ours(ours: dict[str, dict], theirs: dict[str, dict]) -> list[str]:
    """Tests that fail with gpushard's pipeline, not with zarr's, and on values."""
    return sorted(
        name
        for name, test in ours.items()
        if test["outcome"] == "failed"
        and theirs.get(name, {}).get("outcome") != "failed"
        and not is_of_zarrs_insides(name, test.get("reason", ""))
    )


def is_of_zarrs_insides(name: str, reason: str) -> bool:
    """Whether a test is one of those, and fails where they do."""
    known = OF_ZARRS_INSIDES.get(name.rpartition("::")[2].partition("[")[0])
    return known is not None and known[1] in reason


def main() -> int:
    """Run both, tell the difference; 1 if gpushard fails where zarr does not."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sdist", type=Path, help="instead of fetching it")
    parser.add_argument("--workers", default="2", help="for pytest-xdist")
    options, rest = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as place:
        sdist = options.sdist or fetch_sdist(Path(place))
        root = unpack(sdist, Path(place) / "unpacked")
        pretend_installed(root.parent)
        rest = ["-n", options.workers, *(rest or ["tests"])]
        theirs, ours = (run(root, pipeline, rest) for pipeline in PIPELINES)
    reasons: Counter[str] = Counter()
    for test in ours.values():
        reasons.update(r for r in test["counts"] if r.startswith("because"))
    print(f"zarr's pipeline: {summary(theirs)}")  # noqa: T201  it is a report
    print(f"gpushard's:      {summary(ours)}")  # noqa: T201
    for reason, n in reasons.most_common():
        print(f"  {n} tests left reads to zarr {reason}")  # noqa: T201
    for name, (reason, _) in OF_ZARRS_INSIDES.items():
        n = sum(name in test and ours[test]["outcome"] == "failed" for test in ours)
        print(f"  {n} failures of {name}, about {reason}")  # noqa: T201
    failed = only_ours(ours, theirs)
    for name in failed:
        print(f"only with gpushard: {name}")  # noqa: T201
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
