"""What the mark of a conversion holds for arrays of very many shards."""

from __future__ import annotations

import tracemalloc
from types import SimpleNamespace
from typing import Any

import numpy as np

from gpushard.converting import mark
from gpushard.options import MIB


class Absent:
    """A store that has the objects whose keys end in 7."""

    def __init__(self) -> None:
        self.n_asked = 0

    def read(self, requests: Any) -> list[Any]:
        self.n_asked += len(requests)
        return [True if r.key[-1] == "7" else None for r in requests]


def test_shards_that_may_be_finished_are_listed_few_at_a_time(monkeypatch):
    monkeypatch.setattr(mark, "writer_of", lambda _: SimpleNamespace(puts_whole=True))
    n, step = 1 << 20, 9
    done = np.ones(n, bool)
    done[::step] = False
    store: Any = Absent()
    found = mark.Mark(store, "mark", "source", "document", done.copy())
    tracemalloc.start()
    try:
        found.look_for(str)
        nbytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    number = np.arange(n)
    assert store.n_asked == n - int(done.sum())
    assert np.array_equal(found.done, done | (number % 10 == 7))
    assert nbytes < 2 * MIB
