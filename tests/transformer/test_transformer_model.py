"""A `ShardedStore` against a plain dict: values, keys, listings, what lies below."""

from __future__ import annotations

import itertools
import struct

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from zarr.storage import MemoryStore

from gpushard.transformer import ShardedStore
from zarr_oracle import held

GRID = (5, 4)
OTHERS = (
    "zarr.json",
    "meta/root/a.array.json",
    "meta/root/b.group.json",
    "data/root/ab/c0/0",
    "data/root/b/c1.1",
    "data/root/a/x",
    "data/root/a/c01/1",
    "data/root/a/c-1/0",
    "data/other/c0/0",
)
PREFIXES = (
    "",
    "data/",
    "data/root/",
    "data/root/a/",
    "data/root/a/c",
    "data/root/a",
    "data/root/a/c1",
    "data/root/a/c1/",
    "data/root/a/c4.",
    "data/root/a/c4/3",
    "data/root/b/",
    "meta/root/",
    "x",
)
SHARDS = ((1, 1), (2, 2), (2, 3), (5, 4), (1, 3))
VALUES = st.binary(max_size=6)


def parsed_shard(data: bytes, n_entries: int) -> dict[int, bytes]:
    """Chunks of a shard, by the words of the draft."""
    index = data[len(data) - 16 * n_entries :]
    found = {}
    for k in range(n_entries):
        offset, nbytes = struct.unpack_from("<QQ", index, 16 * k)
        if (offset, nbytes) != (2**64 - 1, 2**64 - 1):
            assert offset + nbytes <= len(data) - len(index)
            found[k] = data[offset : offset + nbytes]
    return found


class ShardedStoreMachine(RuleBasedStateMachine):
    @initialize(
        per_shard=st.sampled_from(SHARDS),
        outer=st.sampled_from((None, (1, 1), (2, 1))),
        separator=st.sampled_from(("/", ".")),
        knows_grid=st.booleans(),
        in_zarr=st.booleans(),
    )
    def start(self, per_shard, outer, separator, knows_grid, in_zarr):
        self.model: dict[str, bytes] = {}
        self.per_shard, self.outer, self.separator = per_shard, outer, separator
        self.values: dict = {}
        target: object = MemoryStore(self.values) if in_zarr else self.values
        if outer is not None:
            target = ShardedStore(target, outer, "a", separator=separator)
        self.store = ShardedStore(
            target,
            per_shard,
            "a",
            separator=separator,
            grid_shape=GRID if knows_grid else None,
        )
        chunks = itertools.product(*map(range, GRID))
        self.chunks = [f"data/root/a/c{i}{separator}{j}" for i, j in chunks]
        self.keys = [*self.chunks, *OTHERS]

    def drawn_keys(self, data, max_size=4):
        return data.draw(st.lists(st.sampled_from(self.keys), max_size=max_size))

    @rule(data=st.data(), value=VALUES)
    def set_one(self, data, value):
        key = data.draw(st.sampled_from(self.keys))
        self.store.set(key, value)
        self.model[key] = value

    @rule(data=st.data())
    def set_many(self, data):
        many = data.draw(st.dictionaries(st.sampled_from(self.keys), VALUES))
        self.store.set_values(many)
        self.model.update(many)

    @rule(value=VALUES)
    def set_every_chunk(self, value):
        many = dict.fromkeys(self.chunks, value)
        self.store.set_values(many)
        self.model.update(many)

    @rule(data=st.data())
    def set_partial(self, data):
        triples, model = [], dict(self.model)
        for key in self.drawn_keys(data):
            old = model.get(key, b"")
            start = data.draw(st.integers(-len(old), len(old)))
            value = data.draw(VALUES)
            at = start if start >= 0 else len(old) + start
            model[key] = old[:at] + value + old[at + len(value) :]
            triples.append((key, start, value))
        self.store.set_partial_values(triples)
        self.model = model

    @rule(data=st.data())
    def get_partial(self, data):
        span = st.tuples(st.integers(-8, 8), st.none() | st.integers(0, 8))
        key_ranges = data.draw(
            st.lists(st.tuples(st.sampled_from(self.keys), span), max_size=6)
        )
        for (key, (start, length)), got in zip(
            key_ranges, self.store.get_partial_values(key_ranges), strict=True
        ):
            want = self.model.get(key)
            if want is not None:
                rest = want[start:] if start >= 0 else want[-min(-start, len(want)) :]
                rest = rest if want else b""
                want = rest if length is None else rest[:length]
            assert got == want

    @rule(data=st.data())
    def erase_values(self, data):
        keys = self.drawn_keys(data, 12)
        self.store.erase_values(keys)
        for key in keys:
            self.model.pop(key, None)

    @rule(prefix=st.sampled_from(PREFIXES))
    def erase_prefix(self, prefix):
        self.store.erase_prefix(prefix)
        for key in [key for key in self.model if key.startswith(prefix)]:
            del self.model[key]

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def delete_as_a_mapping(self, data):
        key = data.draw(st.sampled_from(sorted(self.model)))
        assert self.store.pop(key) == self.model.pop(key)

    @rule(prefix=st.sampled_from(PREFIXES))
    def list_prefix(self, prefix):
        want = sorted(key for key in self.model if key.startswith(prefix))
        assert list(self.store.list_prefix(prefix)) == want

    @rule(prefix=st.sampled_from(PREFIXES))
    def list_dir(self, prefix):
        if prefix and not prefix.endswith("/"):
            return
        keys, prefixes = self.store.list_dir(prefix)
        below = [k.removeprefix(prefix) for k in self.model if k.startswith(prefix)]
        assert list(keys) == sorted(f"{prefix}{k}" for k in below if "/" not in k)
        want = {f"{prefix}{k.partition('/')[0]}/" for k in below if "/" in k}
        assert want <= set(prefixes)
        assert list(prefixes) == sorted(set(prefixes))
        # What is listed beyond is of chunks in shards that are there.
        for extra in set(prefixes) - want:
            assert extra.startswith("data/root/a/c")

    @invariant()
    def the_store_is_the_model(self):
        if not hasattr(self, "model"):
            return
        assert dict(self.store) == self.model
        assert list(self.store.list()) == sorted(self.model)

    @invariant()
    def below_lie_shards_and_what_was_passed_on(self):
        if not hasattr(self, "model") or self.outer is not None:
            return
        bytes_of = {
            key: value if isinstance(value, bytes) else value.to_bytes()
            for key, value in self.values.items()
        }
        passed = {k: v for k, v in self.model.items() if k in OTHERS}
        assert {k: v for k, v in bytes_of.items() if k in OTHERS} == passed
        found = {}
        n_rows, n_columns = self.per_shard
        for key in bytes_of.keys() - passed.keys():
            text = key.removeprefix("data/root/a/c").split(self.separator)
            home = tuple(map(int, text))
            chunks = parsed_shard(bytes_of[key], n_rows * n_columns)
            assert chunks, "an empty shard was left behind"
            for entry, data in chunks.items():
                i, j = divmod(entry, n_columns)
                at = home[0] * n_rows + i, home[1] * n_columns + j
                found[f"data/root/a/c{at[0]}{self.separator}{at[1]}"] = data
        assert found == {k: v for k, v in self.model.items() if k not in OTHERS}


TestShardedStore = ShardedStoreMachine.TestCase
# Some 600 steps with any profile that CI takes; 200 examples in `./dev explore`.
TestShardedStore.settings = settings(
    max_examples=max(20, settings.default.max_examples // 5), stateful_step_count=30
)


def test_what_a_zarr_store_holds_is_seen():
    store = ShardedStore(held({"zarr.json": b"{}"}), (2, 2), "a")
    assert store["zarr.json"] == b"{}"
