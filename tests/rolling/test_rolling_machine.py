"""A rolling array against a dictionary of logical coordinates, step by step."""

from __future__ import annotations

from tempfile import TemporaryDirectory

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from zarr.storage import MemoryStore

from gpushard.rolling import RollingArray
from rolling_arrays import FILL, PLAIN, SHARD, WIDTH

LENGTHS = st.integers(0, 3).map(lambda n: n * SHARD)
GAPS = st.integers(-2, 2).map(lambda n: n * SHARD)


class Machine(RuleBasedStateMachine):
    """Two handles on one array: one writes, one reads and follows."""

    @initialize(start=GAPS, in_files=st.booleans())
    def make(self, start, in_files):
        self.directory = TemporaryDirectory()
        place = self.directory.name if in_files else MemoryStore()
        self.a = RollingArray.create(place, "a", origin=start // SHARD, **PLAIN)
        self.reader = RollingArray.open(place, "a")
        self.start = self.stop = start
        self.in_files = in_files
        self.stored: dict[int, np.ndarray] = {}
        self.n_written = 0

    def teardown(self):
        self.directory.cleanup()

    def new(self, n):
        self.n_written += 1
        rows = np.arange(n * WIDTH, dtype="i4").reshape(n, WIDTH)
        return rows + 1000 * self.n_written

    def put(self, at, values):
        self.stored |= dict(enumerate(values, at))

    def window(self, start, stop):
        blank = np.full(WIDTH, FILL, "i4")
        rows = [self.stored.get(i, blank) for i in range(start, stop)]
        return np.array(rows, "i4").reshape(-1, WIDTH)

    def forget(self, start, stop):
        for i in range(start, stop):
            self.stored.pop(i, None)

    @rule(n=LENGTHS)
    def append(self, n):
        values = self.new(n)
        self.a.append(values)
        self.put(self.stop, values)
        self.stop += n

    @rule(n=LENGTHS, gap=GAPS)
    def append_somewhere(self, n, gap):
        at = max(self.start, self.stop + gap)
        values = self.new(n)
        self.a.append(values, at=at)
        self.put(at, values)
        self.stop = max(self.stop, at + n)

    @rule(n=LENGTHS)
    def prepend(self, n):
        values = self.new(n)
        self.start -= n
        # What was dropped but not deleted may lie there, which only a lock tells from
        # what another writer puts there.
        self.a.prepend(values, at=None if self.in_files else self.start)
        self.put(self.start, values)

    @rule(n=LENGTHS, delete=st.booleans())
    def drop(self, n, delete):
        n = min(n, self.stop - self.start)
        self.a.drop(n, delete=delete)
        if delete:
            self.forget(self.start, self.start + n)
        self.start += n

    @rule(n=LENGTHS, keep=st.none() | LENGTHS, delete=st.booleans())
    def roll(self, n, keep, delete):
        values = self.new(n)
        self.a.roll(values, keep=keep, delete=delete)
        keep = self.stop - self.start if keep is None else keep
        self.put(self.stop, values)
        self.stop += n
        start = max(self.start, self.stop - keep)
        if delete:
            self.forget(self.start, start)
        self.start = start

    @rule()
    def sweep(self):
        self.a.sweep()
        for i in [i for i in self.stored if i < self.start]:
            del self.stored[i]

    @precondition(lambda self: self.stop > self.start)
    @rule(data=st.data())
    def assign(self, data):
        at = data.draw(st.integers(self.start, self.stop - 1))
        value = self.new(1)[0]
        if data.draw(st.booleans()):
            self.a.at[at] = value
        else:
            self.a[at - self.start] = value
        self.stored[at] = value

    @rule()
    def look(self):
        assert np.array_equal(self.reader.refresh()[...], self.window(*self.sides()))

    def sides(self):
        return self.start, self.stop

    @invariant()
    def is_the_window(self):
        if not hasattr(self, "a"):
            return
        assert self.a.domain[0] == range(self.start, self.stop)
        assert np.array_equal(self.a[...], self.window(*self.sides()))
        lives = self.reader.domain[0]
        if lives.start >= self.start and lives.stop <= self.stop:
            want = self.window(lives.start, lives.start + len(lives))
            assert np.array_equal(self.reader[...], want)


Machine.TestCase.settings = settings(
    max_examples=max(10, settings.get_profile("ci").max_examples // 8),
    stateful_step_count=20,
)
TestRollingArray = Machine.TestCase
