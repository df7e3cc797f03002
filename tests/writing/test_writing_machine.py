"""Any sequence of writes, by any strategy, leaves what NumPy would."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import numpy as np
import zarr
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import basic_indices
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
)

import gpushard
from gpushard.options import Options
from gpushard.write_options import WriteOptions
from zarr_oracle import assert_same_bits

SHAPE, FILL = (9, 14), 3
INDEX_AT = {"append_only": "end", "random_write": "start"}


class Writes(RuleBasedStateMachine):
    """An array in files and one in memory, written to alike."""

    @initialize(
        location=st.sampled_from(["start", "end"]),
        shards=st.sampled_from([(8, 6), (4, 12), (12, 18)]),
        is_compressed=st.booleans(),
    )
    def create(self, location, shards, is_compressed):
        self.location = location
        self.place = Path(tempfile.mkdtemp())
        self.want = np.full(SHAPE, FILL, "i2")
        gpushard.create_array(
            self.place,
            shape=SHAPE,
            dtype="i2",
            chunks=(4, 3) if shards[0] % 4 == 0 else (2, 2),
            shards={"shape": shards, "index_location": location},
            compressors="auto" if is_compressed else None,
            fill_value=FILL,
        )
        self.reader = gpushard.open_array(self.place)

    def opened(self, data) -> gpushard.Array:
        """The array, opened by one more writer, of any strategy that suits."""
        names = ["rewrite", "fixed_order", "append_only", "random_write"]
        names = [n for n in names if INDEX_AT.get(n, self.location) == self.location]
        write = WriteOptions(
            strategy=data.draw(st.sampled_from(names)),
            order=data.draw(st.sampled_from(["c", "f", "morton"])),
            write_empty_chunks=data.draw(st.booleans()),
            max_unused_fraction=data.draw(st.sampled_from([0, 0.3, 1])),
        )
        return gpushard.open_array(self.place, options=Options(write=write))

    def values(self, data, shape) -> np.ndarray:
        kind = data.draw(st.sampled_from(["fill", "one value", "noise"]))
        if kind == "fill":
            return np.full(shape, FILL, "i2")
        seed = data.draw(st.integers(0, 99))
        if kind == "one value":
            return np.full(shape, seed, "i2")
        return np.random.default_rng(seed).integers(-999, 999, shape).astype("i2")

    @rule(data=st.data(), key=basic_indices(SHAPE, allow_newaxis=False))
    def write(self, data, key):
        values = self.values(data, self.want[key].shape)
        self.opened(data)[key] = values
        self.want[key] = values

    @rule(
        data=st.data(),
        rows=st.lists(st.integers(0, SHAPE[0] - 1), max_size=5),
        columns=st.lists(st.integers(0, SHAPE[1] - 1), max_size=5),
    )
    def write_orthogonally(self, data, rows, columns):
        values = self.values(data, (len(rows), len(columns)))
        self.opened(data).oindex[rows, columns] = values
        self.want[np.ix_(rows, columns)] = values

    @rule(
        data=st.data(),
        points=st.lists(
            st.tuples(st.integers(0, SHAPE[0] - 1), st.integers(0, SHAPE[1] - 1)),
            min_size=1,
            max_size=6,
        ),
    )
    def write_points(self, data, points):
        rows, columns = map(list, zip(*points, strict=True))
        values = self.values(data, (len(rows),))
        self.opened(data).vindex[rows, columns] = values
        for point, value in zip(points, values, strict=True):
            self.want[point] = value

    @rule()
    def compact(self):
        gpushard.compact(self.reader)

    @rule()
    def compare_with_zarr_python(self):
        assert_same_bits(zarr.open_array(self.place)[...], self.want)

    @invariant()
    def reader_sees_what_was_written(self):
        assert_same_bits(self.reader[...], self.want)
        assert not list(self.place.rglob(".*"))

    def teardown(self):
        shutil.rmtree(self.place, ignore_errors=True)


TestWrites = Writes.TestCase
TestWrites.settings = settings(
    max_examples=15,
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
