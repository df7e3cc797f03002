"""pytest plugin for zarr's own tests: counts the reads that gpushard decodes.

Writes, to the file that ``GPUSHARD_ZARR_SUITE_REPORT`` names, for each test its outcome
and how many reads gpushard did and left to zarr.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

import pytest

from gpushard.errors import ObjectDeletedError, UnsupportedError

COUNTS: Counter[str] = Counter()
OUTCOMES: dict[str, dict] = {}


def pytest_configure(config):
    # zarr's tests make errors of warnings; falling back is what we count here.
    config.addinivalue_line("filterwarnings", "ignore:gpushard leaves this")
    # A busy machine is no slow test.
    from hypothesis import HealthCheck, settings

    settings.register_profile(
        "zarr-suite",
        deadline=None,
        derandomize=True,
        max_examples=int(os.environ.get("GPUSHARD_ZARR_SUITE_EXAMPLES", "10")),
        suppress_health_check=list(HealthCheck),
    )
    settings.load_profile("zarr-suite")

    from gpushard.integrations.zarr import pipeline

    read = pipeline.read_batch

    def counted(*arguments):
        try:
            result = read(*arguments)
        except (UnsupportedError, ObjectDeletedError) as error:
            COUNTS["left to zarr"] += 1
            COUNTS[f"because {error.what}"] += 1
            raise
        COUNTS["decoded"] += 1
        return result

    pipeline.read_batch = counted


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    before = COUNTS.copy()
    try:
        return (yield)
    finally:
        item.user_properties.append(("gpushard", dict(COUNTS - before)))


def pytest_runtest_logreport(report):
    known = OUTCOMES.setdefault(report.nodeid, {"outcome": "passed", "counts": {}})
    if report.outcome != "passed":
        known["outcome"] = "xfailed" if hasattr(report, "wasxfail") else report.outcome
        known["reason"] = str(report.longrepr)[-2000:]
    known["counts"].update(dict(report.user_properties).get("gpushard", {}))


def pytest_sessionfinish(session):
    report = os.environ.get("GPUSHARD_ZARR_SUITE_REPORT")
    if report and not hasattr(session.config, "workerinput"):
        Path(report).write_text(json.dumps(OUTCOMES, indent=1))
