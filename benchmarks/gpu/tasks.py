"""All tasks of a run, in the order in which they are done."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from benchmarks.gpu import (
    alternatives,
    ceilings,
    checks,
    peers,
    prepare,
    probes,
    replay,
    training,
    whole,
)
from benchmarks.gpu.run import Run, facts
from benchmarks.gpu.sizes import CODECS, Sizes

STAGES = (
    *("tests", "sanitizer", "probes", "ceilings", "kernels", "whole", "peers"),
    "training",
)


class Task(NamedTuple):
    """Something to find out, in a process of its own: rows are its answer.

    Attributes
    ----------
    stage
        One of `STAGES`.
    name
        Of the task; its rows are called so, too, or begin with it.
    function
        What finds it out.
    limit_s
        Seconds after which it is taken for hanging.
    """

    stage: str
    name: str
    function: Callable[[Run], None]
    limit_s: float = 500.0


def tasks(sizes: Sizes) -> list[Task]:
    """Tasks of a run; the first tells what is measured on."""
    return [
        Task("tests", "facts", facts, 60),
        *(
            Task("tests", f"tests/{name}", partial(checks.run_tests, name))
            for name in (checks.CONTACT, *checks.TESTS)
        ),
        *(
            # Slow by a factor that nobody knows: all else must have its turn.
            Task(
                "sanitizer",
                f"sanitizer/{tool}",
                partial(checks.run_sanitizer, tool),
                150,
            )
            for tool in checks.TOOLS
        ),
        *(
            Task("probes", f"probes/{name}", partial(probe, f"probes/{name}"), 60)
            for name, probe in probes.PROBES.items()
        ),
        Task("ceilings", "ceilings/arrays", prepare.arrays, 300),
        Task("ceilings", "ceilings/copies", ceilings.copies, 120),
        Task("ceilings", "ceilings/storage", ceilings.storage, 120),
        Task("ceilings", "ceilings/placement", ceilings.placement, 120),
        Task("ceilings", "alternatives/crc32c", alternatives.checksums, 120),
        Task("ceilings", "alternatives/gzip", alternatives.gzip, 120),
        Task("ceilings", "alternatives/fetch", alternatives.fetch, 120),
        *(
            Task("ceilings", f"ceilings/{name}", partial(ceilings.decoder, name))
            for name in ceilings.ALGORITHMS
        ),
        *(
            Task("kernels", f"kernels/{name}", partial(replay.scatter, name), 120)
            for name in replay.SCATTERS
        ),
        *(
            Task("kernels", f"kernels/{codec}", partial(replay.batch, codec), 300)
            for codec in CODECS
        ),
        *_whole_tasks(sizes),
        *(
            Task("peers", f"peers/{name}/{codec}", partial(peers.read, name, codec))
            for name in peers.PEERS
            for codec in CODECS
        ),
        Task("training", "training/ours", training.ours, 150),
        Task("training", "training/peers", training.peers, 120),
    ]


def _whole_tasks(sizes: Sizes) -> list[Task]:
    usual = [
        Task("whole", f"whole/{codec}", partial(whole.large, codec)) for codec in CODECS
    ]
    sweep = [
        Task("whole", f"sweep/{codec}/{inner}", partial(whole.sweep, codec, inner))
        for codec in CODECS
        for inner in sizes.inner_nbytes
    ]
    return [*usual, *sweep]
