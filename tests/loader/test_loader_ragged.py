"""Ragged samples are the runs of rows that their offsets cut."""

from __future__ import annotations

import numpy as np
import pytest
import zarr

import gpushard
from cuda_host.device import EmulatedDevice
from cuda_host.launch import Kernels
from cuda_host.standin import load_standin
from gpushard import Loader, OptionError, Ragged
from gpushard.loader import reading
from gpushard.loader.arguments import laid_fields
from gpushard.loader.memory import Memory
from loader_data import ORDERS, N, stored

LENGTHS = np.random.default_rng(1).integers(0, 9, N)
OFFSETS = np.concatenate([[2], 2 + np.cumsum(LENGTHS)])
TOKENS = np.arange((OFFSETS[-1] + 5) * 2, dtype="u2").reshape(-1, 2)


def tokens():
    return stored(TOKENS, (16, 2), (64, 2))


def sample(i):
    return TOKENS[OFFSETS[i] : OFFSETS[i + 1]]


def assert_samples(batch, index):
    assert len(batch) == len(index)
    for got, i in zip(batch, index, strict=True):
        assert got.dtype == TOKENS.dtype
        assert np.array_equal(got, sample(i))


@pytest.mark.parametrize("order", ORDERS)
def test_a_batch_is_a_list_of_the_samples(order):
    offsets = stored(OFFSETS, (10,))
    options = {"batch_size": 8, "return_index": True} | ORDERS[order]
    with Loader(Ragged(tokens(), offsets), **options) as loader:
        for _ in range(2):
            for batch, index in loader:
                assert isinstance(batch, list)
                assert_samples(batch, index)
        assert loader.stats()["samples"] > 0


def test_ragged_and_other_arrays_are_aligned():
    arrays = {"text": Ragged(tokens(), OFFSETS), "label": stored(np.arange(N), (7,))}
    for batch in Loader(arrays, batch_size=10, shuffle=True, return_index=True):
        assert_samples(batch["text"], batch["index"])
        assert np.array_equal(batch["label"], batch["index"])
    with pytest.raises(OptionError, match="the same length"):
        Loader({"text": Ragged(tokens(), OFFSETS[:-1]), "label": arrays["label"]})


def test_ragged_samples_lie_beside_patches_of_several_axes():
    """Several patches begin at one row, so there are more samples than ragged rows."""
    field = np.arange(N * 9, dtype="i4").reshape(N, 9)
    arrays = {"text": Ragged(tokens(), OFFSETS), "patch": stored(field, (5, 9))}
    options = {"window": {"patch": (2, 3)}, "stride": (2, 3), "return_index": True}
    for batch in Loader(arrays, batch_size=10, shuffle=True, **options):
        row, column = batch["index"] // 3 * 2, batch["index"] % 3 * 3
        assert_samples(batch["text"], row)
        assert np.array_equal(batch["patch"][:, 0, 0], field[row, column])


def test_a_packed_batch_is_values_and_offsets():
    packed = Ragged(tokens(), OFFSETS, packed=True)
    options = {"batch_size": 8, "shuffle": True, "return_index": True}
    for (values, offsets), index in Loader(packed, **options):
        assert offsets[0] == 0
        assert offsets[-1] == len(values)
        assert_samples(np.split(values, offsets[1:-1]), index)


def test_small_reads_give_the_same_samples(monkeypatch):
    monkeypatch.setattr(reading, "LOAD_NBYTES", 300)
    options = {"batch_size": 8, "shuffle": True, "block": 5, "return_index": True}
    for batch, index in Loader(Ragged(tokens(), OFFSETS), **options):
        assert_samples(batch, index)


def test_blocks_begin_where_shards_do():
    given = Ragged(tokens(), OFFSETS)
    options = {"shuffle": True, "block": "shard", "buffer_blocks": 1}
    loader = Loader(given, batch_size=N, return_index=True, **options)
    ((_, index),) = loader
    shard = np.searchsorted(np.arange(0, len(TOKENS), 64), OFFSETS[index], "right")
    changes = np.count_nonzero(np.diff(shard))
    assert changes < len(np.unique(shard)) + 3
    assert sorted(index) == list(range(N))


def test_values_are_cast_and_scaled():
    batch = next(iter(Loader(Ragged(tokens(), OFFSETS), batch_size=5, scale=0.5)))
    for i, got in enumerate(batch):
        assert got.dtype == "f4"
        assert np.array_equal(got, sample(i) * 0.5)


def test_joined_values_are_read_as_one():
    parts = [stored(TOKENS[:100], (16, 2)), stored(TOKENS[100:], (30, 2))]
    given = Ragged(gpushard.concat(parts), OFFSETS)
    for batch, index in Loader(given, batch_size=8, shuffle=True, return_index=True):
        assert_samples(batch, index)


def test_a_range_is_read_once_however_many_want_it():
    given = Ragged(tokens(), OFFSETS)
    loader = Loader(given, batch_size=50, sampler=[3] * 50, return_index=True)
    ((batch, index),) = loader
    assert_samples(batch, index)
    assert loader.stats()["stored_bytes_read"] < 1000


def test_an_epoch_of_ragged_samples_resumes():
    def loader():
        return Loader(Ragged(tokens(), OFFSETS), batch_size=8, shuffle=True, seed=3)

    first = loader()
    batches = iter(first)
    for _ in range(4):
        next(batches)
    second = loader()
    second.load_state_dict(first.state_dict())
    rest = [[s.tolist() for s in batch] for batch in second]
    assert rest == [[s.tolist() for s in batch] for batch in batches]
    other = Loader(Ragged(tokens(), OFFSETS + 1), batch_size=8, shuffle=True, seed=3)
    with pytest.raises(OptionError, match="arrays array"):
        other.load_state_dict(first.state_dict())


def test_a_damaged_inner_chunk_costs_the_samples_that_touch_it(tmp_path):
    import zarr

    z = zarr.create_array(
        tmp_path,
        shape=TOKENS.shape,
        chunks=(16, 2),
        shards=(64, 2),
        dtype="u2",
        compressors=zarr.codecs.ZstdCodec(checksum=True),
    )
    z[...] = TOKENS
    shard = tmp_path / "c/1/0"
    payload = bytearray(shard.read_bytes())
    payload[:8] = b"\0" * 8
    shard.write_bytes(payload)
    lost = {
        i for i in range(N) if OFFSETS[i] < 80 and OFFSETS[i + 1] > 64 and LENGTHS[i]
    }
    given = Ragged(gpushard.open_array(tmp_path), OFFSETS)
    with pytest.raises(gpushard.CorruptShardError) as caught:
        list(Loader(given, batch_size=8))
    assert f"samples {min(lost)}," in caught.value.__notes__[0]
    found = set()
    loader = Loader(given, batch_size=8, on_error="skip", return_index=True)
    for batch, index in loader:
        assert_samples(batch, index)
        found |= set(index.tolist())
    assert set(range(N)) - found == lost


def test_ragged_samples_lie_on_a_device(monkeypatch):
    monkeypatch.setattr(reading, "LOAD_NBYTES", 900)
    device = EmulatedDevice(Kernels(), load_standin())
    given = Ragged(tokens(), OFFSETS)
    options = {"batch_size": 8, "shuffle": True, "block": 5, "return_index": True}
    for batch, index in Loader(given, device=device, **options):
        assert_samples([one.get() for one in batch], index)
    packed = Ragged(tokens(), OFFSETS, packed=True)
    for (values, offsets), index in Loader(packed, device=device, **options):
        assert_samples(np.split(values.get(), offsets[1:-1]), index)


@pytest.mark.parametrize(
    ("offsets", "said"),
    [
        ([0, 5, 4], r"offsets\[2\] = 4"),
        ([-1, 5], r"offsets\[0\] = -1"),
        ([0, 10**6], r"offsets\[1\]"),
        (np.array([0, 2**63], "u8"), r"offsets\[1\] = 9223372036854775808"),
        ([], "one more"),
        ([0.5, 1.5], "whole numbers"),
        ([[0, 1]], "one more"),
        ([[0, 1], [2]], "a flat list"),
    ],
)
def test_offsets_that_cut_nothing_are_refused(offsets, said):
    with pytest.raises(OptionError, match=said):
        Loader(Ragged(tokens(), offsets))


def test_whether_samples_are_packed_is_true_or_false():
    with pytest.raises(OptionError, match="packed= must be True or False"):
        Loader(Ragged(tokens(), [0, 1], packed="no"))


def test_ragged_samples_have_no_windows():
    with pytest.raises(OptionError, match="window= and lead= cannot apply"):
        Loader({"text": Ragged(tokens(), OFFSETS)}, window={"text": 3})
    with pytest.raises(OptionError, match="must be an array of gpushard"):
        Loader(Ragged(TOKENS, OFFSETS))


def test_what_is_no_array_is_refused_with_what_to_do():
    with pytest.raises(OptionError, match="pass return_index=True"):
        Loader({"x": tokens(), "y": TOKENS})
    with pytest.raises(
        OptionError, match=r"got str; open it with gpushard\.open_array"
    ):
        Loader("tokens.zarr")
    other = zarr.zeros((3, 4))
    with pytest.raises(OptionError, match=r"got zarr\.Array; open it with"):
        Loader(other)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("order", ["sequential", "global", "shards", "chunks", "rows"])
@pytest.mark.parametrize(
    "offsets",
    [
        [0] * N + [0],
        [len(TOKENS)] * N + [len(TOKENS)],
        [0] * 40 + [3] * 30 + [len(TOKENS) - 2] * (N - 70) + [len(TOKENS)],
    ],
    ids=["empty at the start", "empty at the end", "a giant one"],
)
def test_empty_samples_and_a_giant_one_are_samples(offsets, order, packed):
    given = Ragged(tokens(), stored(np.array(offsets), (4,), (16,)), packed=packed)
    options = {"batch_size": 8, "return_index": True} | ORDERS[order]
    seen = []
    for batch, index in Loader(given, **options):
        parts = np.split(batch[0], batch[1][1:-1]) if packed else batch
        assert len(parts) == len(index)
        for part, i in zip(parts, index.tolist(), strict=True):
            assert np.array_equal(part, TOKENS[offsets[i] : offsets[i + 1]])
        seen += index.tolist()
    assert sorted(seen) == list(range(N))


def test_long_samples_side_by_side_are_not_read_all_at_once(monkeypatch):
    """Sorted by length, the last ones are many times as long as the mean."""
    monkeypatch.setattr(reading, "LOAD_NBYTES", 50 * 1100)
    rows = stored(np.zeros((200, 500), "u2"), (16, 500), (64, 500))
    longest, take = [], Memory.take

    def taken(memory, shape, dtype):
        longest.append(shape[0])
        return take(memory, shape, dtype)

    monkeypatch.setattr(Memory, "take", taken)
    lengths = np.array([0] * 180 + [10] * 20)
    given = Ragged(rows, np.append(0, np.cumsum(lengths)))
    batches = list(Loader(given, batch_size=1))
    assert [len(batch[0]) for batch in batches] == lengths.tolist()
    assert 10 < max(longest) <= 2 * 50  # of 200 rows in all


def test_samples_of_rows_of_one_element_are_samples():
    column = TOKENS[:, :1]
    ragged = Ragged(stored(column, (16, 1), (64, 1)), OFFSETS)
    batch, index = next(iter(Loader(ragged, batch_size=8, return_index=True)))
    for got, i in zip(batch, index, strict=True):
        assert np.array_equal(got, column[OFFSETS[i] : OFFSETS[i + 1]])


def test_samples_touch_the_rows_that_they_have_and_take_memory_for_these():
    _, (field,) = laid_fields(
        Ragged(tokens(), [0, 4, 4, 9, 12]),
        num_threads=None,
        window=None,
        lead=None,
        conversions=dict.fromkeys(("dtype", "scale", "offset")),
    )
    samples = np.arange(4)[:, None]
    for rows, want in [((4, 9), [2]), ((3, 6), [0, 2]), ((9, 12), [3])]:
        touched = field.touches(samples, [rows])
        assert np.flatnonzero(touched).tolist() == want  # sample 1 is empty
    few, many = field.nbytes_of(samples[1:2]), field.nbytes_of(samples[1:3])
    assert 0 < few < many - 5 * 4
