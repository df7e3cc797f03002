"""What forked processes answer."""

from __future__ import annotations

import gc
import multiprocessing
import os
import warnings
from collections.abc import Callable, Sequence


def answers_in_a_fork(work: Callable[[], bool]) -> bool:
    """Whether `work` is true in a forked process, which has two minutes for it."""
    return answers_in_forks([work]) == [True]


def answers_in_forks(works: Sequence[Callable[[], bool]]) -> list[bool]:
    """Whether each is true, side by side in forked processes with two minutes each."""
    processes = [forked(work) for work in works]
    for process in processes:
        process.join(120)  # the longest takes 8 s of CPU time
        if process.exitcode is None:
            process.kill()
            process.join()
    return [process.exitcode == 0 for process in processes]


def forked(work: Callable[[], bool]) -> multiprocessing.process.BaseProcess:
    """A process that ends with 0 if `work` is true, or with the process of the test."""

    def answer() -> None:
        # What thousands of tests have left is not walked through by each collection.
        gc.freeze()
        os._exit(0 if work() else 1)

    with warnings.catch_warnings():
        # Python warns of forks of a process that has threads; that is what is tested.
        warnings.simplefilter("ignore", DeprecationWarning)
        process = multiprocessing.get_context("fork").Process(
            target=answer, daemon=True
        )
        process.start()
    return process
