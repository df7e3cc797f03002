"""Parts of one inner chunk read in one compiled call: which, and that it is right."""

from __future__ import annotations

import errno
import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpushard
from array_strategies import codec
from fused_cases import CHAINS, CRC, FUSED, LITTLE, LZ4, VALUES, ZSTD, blosc, stored
from gpushard.fused import choice, placer
from gpushard.fused.addresses import address_of
from gpushard.fused.chain import fused_chain
from gpushard.fused.choice import loops_for
from gpushard.fused.placer import BoxPlacer
from gpushard.fused.short.one_call import OneCall
from gpushard.fused.short.ways import short_ways
from gpushard.fused.thread_memory import ThreadMemory
from spec_shards import document, sharding
from zarr_oracle import assert_same_bits, write

pytest.importorskip("numba", reason="the compiled loops need numba (extra `fast`)")

pytestmark = [
    # zarr 3.1 says so wherever one of numcodecs' codecs is made.
    pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in"),
    pytest.mark.usefixtures("settled"),
]

SINGLE = FUSED.but(small_read_chunks=8)
INSIDE = np.s_[35:60, 20:31]  # of one inner chunk of `VALUES`
VOLUME = np.arange(20 * 18 * 9, dtype="i4").reshape(20, 18, 9)
NOISE = np.random.default_rng(5).integers(0, 4, (1024, 512), np.uint8)


@pytest.fixture(autouse=True)
def loaded():
    """The loops are there, as after the first large read of a process."""
    choice._load()


def opened(place: Any, options: Any = SINGLE) -> gpushard.Array:
    """Array whose indexes are all known."""
    a = gpushard.open_array(place, options=options, device="cpu")
    a.oindex[...]  # `taken` counts only reads that begin with a plain key
    return a


def reader_of(a: gpushard.Array) -> Any:
    """The reader that single inner chunks of an array go to."""
    return short_ways(a.source).single


@pytest.fixture
def array(tmp_path):
    return opened(stored([ZSTD]).placed("local", tmp_path))


@pytest.mark.parametrize("chain", CHAINS)
def test_every_chain_is_read_and_decoded(chain, taken, tmp_path):
    a = opened(stored(CHAINS[chain]).placed("local", tmp_path))
    for key in (INSIDE, np.s_[40], np.s_[-1, -1], np.s_[64:96:7, 17:32:3]):
        assert_same_bits(a[key], VALUES[key])
    assert taken == [True, False, True, True]


@pytest.fixture(scope="module", params=["raw", "zstd", "blosc lz4 shuffle 0"])
def volume(request, tmp_path_factory):
    inner = sharding((10, 9, 9), codecs=[LITTLE, *CHAINS[request.param]])
    inner["configuration"]["codecs"].insert(0, codec("transpose", order=[2, 0, 1]))
    here = document(VOLUME.shape, (20, 18, 9), inner, dtype="int32", fill_value=5)
    root = tmp_path_factory.mktemp("v")
    return opened(write(here, [(..., VOLUME)]).placed("local", root))


@st.composite
def single_keys(draw) -> tuple[Any, ...]:
    """Integers and slices that mostly stay in one inner chunk of `VOLUME`."""
    key = []
    for n, cell in zip(VOLUME.shape, (10, 9, 9), strict=True):
        first = draw(st.integers(0, n // cell - 1)) * cell
        start = first + draw(st.integers(0, cell - 1))
        stop = draw(st.integers(start + 1, first + cell))
        some = slice(start, stop, draw(st.integers(1, 4)))
        some = draw(st.sampled_from([start, start - n, some, slice(start - n, stop)]))
        key.append(some)
    return tuple(key[: draw(st.integers(1, 3))])


@given(single_keys())
def test_any_part_of_an_inner_chunk_is_read_as_numpy_reads_it(volume, key):
    got, want = volume[key], VOLUME[key]
    assert_same_bits(got, want)
    assert type(got) is type(want)


@pytest.mark.parametrize(
    ("stored_as", "dtype"), [(">i2", "int16"), ("<f8", "float64"), ("?", "bool")]
)
def test_elements_are_changed_as_in_any_read(stored_as, dtype, taken, tmp_path):
    values = (NOISE[:64, :64] % 2).astype(dtype)
    endian = "big" if stored_as[0] == ">" else "little"
    before = codec("bytes") if dtype == "bool" else codec("bytes", endian=endian)
    inner = sharding((16, 16), codecs=[before, ZSTD])
    fill = False if dtype == "bool" else 0
    here = document((64, 64), (32, 32), inner, dtype=dtype, fill_value=fill)
    a = opened(write(here, [(..., values)]).placed("local", tmp_path))
    for key in (np.s_[3:9, 20:30:2], np.s_[40, 63]):
        assert_same_bits(a[key], values[key])
    assert taken == [True, True]


@pytest.mark.parametrize(
    "key",
    [
        pytest.param(np.s_[30:40, 20], id="two inner chunks"),
        pytest.param(np.s_[40], id="a row of several"),
        pytest.param(np.s_[..., 3], id="ellipsis"),
        pytest.param(np.s_[3, None, 3], id="new axis"),
        pytest.param(np.s_[9:5:-1, 3], id="reversed"),
        pytest.param(np.s_[5:5, 3], id="empty"),
        pytest.param(np.s_[5:6:60, 3], id="a step beyond the inner chunk"),
        pytest.param(np.s_[5 : 6 : 2**70, 3], id="a step that fits no word"),
        pytest.param(([3, 4], 3), id="list"),
        pytest.param((np.int64(3), 3), id="integer of NumPy"),
    ],
)
def test_other_keys_are_declined_and_read_as_ever(key, array, taken):
    assert_same_bits(array[key], VALUES[key])
    assert taken == [False]


@pytest.mark.parametrize("key", [(100, 3), (-101, 3), (3, 3, 3), (slice("a"), 3)])
def test_keys_that_do_not_fit_are_refused_as_ever(key, array, taken):
    with pytest.raises(gpushard.SelectionError):
        array[key]
    assert taken == [False]


def test_an_index_is_read_first_the_general_way(taken, tmp_path):
    place = stored([ZSTD]).placed("local", tmp_path)
    a = gpushard.open_array(place, options=SINGLE, device="cpu")
    for _ in range(2):
        assert_same_bits(a[INSIDE], VALUES[INSIDE])
    assert taken == [False, True]


def test_a_missing_inner_chunk_yields_the_fill_value(taken, tmp_path):
    inner = sharding((4, 4), codecs=[LITTLE, ZSTD])
    here = document((16, 8), (8, 8), inner, dtype="int32", fill_value=7)
    values = np.full((16, 8), 7, "i4")
    values[:4, :4] = 1
    a = opened(write(here, [(np.s_[:4, :4], values[:4, :4])]).placed("local", tmp_path))
    for key in (np.s_[1, :4], np.s_[1, 4:], np.s_[9, 1:3]):
        assert_same_bits(a[key], values[key])
    assert taken == [True, False, False]


@pytest.mark.parametrize("chain", [[], [ZSTD], [ZSTD, CRC], [LZ4]], ids=str)
def test_a_replaced_shard_is_noticed_before_it_is_read(chain, taken, tmp_path):
    place = stored(chain).placed("local", tmp_path)
    other = stored(chain, negated=True).placed("local", tmp_path)
    a = opened(place)
    assert_same_bits(a[INSIDE], VALUES[INSIDE])
    os.replace(other / "c/0/0", place / "c/0/0")
    assert_same_bits(a[INSIDE], -VALUES[INSIDE])
    assert taken == [True, False]


def test_a_shard_overwritten_during_the_read_is_read_again(
    taken, monkeypatch, tmp_path
):
    place = stored([]).placed("local", tmp_path)
    other = stored([], negated=True).placed("local", tmp_path)
    a = opened(place)
    plain = OneCall.read_box

    def read_box(*args):
        done = plain(*args)
        (place / "c/0/0").write_bytes((other / "c/0/0").read_bytes())
        return done

    monkeypatch.setattr(OneCall, "read_box", read_box)
    assert_same_bits(a[INSIDE], -VALUES[INSIDE])
    assert taken == [False]


def test_a_file_system_that_fails_is_an_error_of_ours(array, monkeypatch):
    fails, plain = [True], os.fstat

    def fstat(fd):
        if fails:
            fails.clear()
            raise OSError(errno.ESTALE, "Stale file handle")
        return plain(fd)

    monkeypatch.setattr(os, "fstat", fstat)
    with pytest.raises(gpushard.StoreError, match="Stale"):
        array[INSIDE]


@pytest.mark.parametrize("chain", ["zstd, crc32c", "blosc lz4 shuffle 0", "lz4"])
def test_a_damaged_inner_chunk_is_named(chain, taken, tmp_path):
    place = stored(CHAINS[chain]).placed("local", tmp_path)
    a = opened(place)
    known: Any = a.source.indexes.get((0, 0))
    data = bytearray((place / "c/0/0").read_bytes())
    start, nbytes = int(known.index.offset[5]), int(known.index.nbytes[5])
    data[start : start + nbytes] = bytes(nbytes)
    (place / "c/0/0").write_bytes(data)
    b = gpushard.open_array(place, options=SINGLE, device="cpu")
    assert_same_bits(b[3, 3], VALUES[3, 3])  # the index is known
    with pytest.raises(gpushard.CorruptShardError) as caught:
        b[INSIDE]
    assert caught.value.inner_chunk == (1, 1)
    assert taken == [False, False]


def test_an_inner_chunk_stored_in_too_many_bytes_is_refused_as_ever(taken, tmp_path):
    place = stored([ZSTD]).placed("local", tmp_path)
    a = opened(place)
    reader_of(a)._limit_nbytes = 3
    assert_same_bits(a[INSIDE], VALUES[INSIDE])
    assert taken == [False]


def test_each_thread_has_memory_of_its_own(tmp_path):
    a = opened(stored([ZSTD]).placed("local", tmp_path))
    wrong: list[Any] = []

    def read(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for i, j in rng.integers(0, 90, (300, 2)).tolist():
            if a[i, j] != VALUES[i, j]:
                wrong.append((i, j))

    threads = [threading.Thread(target=read, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def noise(root: Path, chain: list[Any]) -> gpushard.Array:
    """Array of `NOISE` in two inner chunks of 256 KiB."""
    root.mkdir(exist_ok=True)
    inner = sharding((512, 512), codecs=[codec("bytes"), *chain])
    here = document(NOISE.shape, NOISE.shape, inner, dtype="uint8", fill_value=0)
    return opened(write(here, [(..., NOISE)]).placed("local", root))


def test_memory_that_moved_is_not_written_to(array, taken, tmp_path):
    assert_same_bits(array[INSIDE], VALUES[INSIDE])
    before = reader_of(array).call._local.words.box
    held = placer._memory.held  # so that no other memory gets its addresses
    placer._memory._kept.clear()  # as if this thread had read little so far
    larger = noise(tmp_path / "larger", [ZSTD])
    assert_same_bits(larger[7, 3:400], NOISE[7, 3:400])
    assert_same_bits(array[INSIDE], VALUES[INSIDE])
    assert reader_of(array).call._local.words.box != before
    assert held
    assert taken == [True, True, True]


def test_memory_that_moves_while_a_read_begins_is_not_used(array, monkeypatch):
    """A signal's handler may read an array with larger inner chunks."""
    assert_same_bits(array[INSIDE], VALUES[INSIDE])
    memory, moves, words = placer._memory, [True], []
    plain: Any = ThreadMemory.held
    run = reader_of(array).call._run

    def held(self):
        found = plain.fget(self)
        if moves:
            moves.clear()
            self.buffer("window", 2 * self.buffer("window", 1).nbytes)
        return found

    def spied(some):
        words.extend(np.frombuffer(some, np.int64).tolist())
        return run(some)

    monkeypatch.setattr(ThreadMemory, "held", property(held))
    monkeypatch.setattr(reader_of(array).call, "_run", spied)
    assert_same_bits(array[INSIDE], VALUES[INSIDE])
    assert not moves
    assert memory._kept["window"].address in words


def test_memory_that_moves_while_words_are_packed_is_not_used(array, monkeypatch):
    call, moves, words = reader_of(array).call, [True], []
    plain, run = BoxPlacer.ready, call._run

    def ready(*args):
        found = plain(*args)
        if moves:
            moves.clear()
            memory.buffer("window", 2 * memory.buffer("window", 1).nbytes)
        return found

    def spied(some):
        words.extend(np.frombuffer(some, np.int64).tolist())
        return run(some)

    monkeypatch.setattr(placer, "_memory", memory := ThreadMemory())
    monkeypatch.setattr(BoxPlacer, "ready", ready)
    monkeypatch.setattr(call, "_run", spied)
    assert_same_bits(array[INSIDE], VALUES[INSIDE])
    assert not moves
    assert memory._kept["window"].address in words


def test_a_thread_keeps_the_memory_that_words_have_addresses_of(array, monkeypatch):
    """Even if memory is crowded when it gets them."""
    chain = fused_chain(array.source)
    assert chain is not None
    loops = loops_for(chain, array.source.options)
    assert loops is not None
    with monkeypatch.context() as patch:
        patch.setitem(vars(array.source.room), "is_crowded", True)
        patch.setattr("gpushard.fused.thread_memory.WINDOW_NBYTES", 0)
        patch.setattr(placer, "_memory", memory := ThreadMemory())
        call: Any = OneCall(array.source, chain, loops, 0)
        words, held = call._words_here()
    found = set(np.frombuffer(words.box, np.int64).tolist())
    kept = memory._kept.values()
    assert {buffer.address for buffer in kept} <= found | {words.memory}
    assert address_of(memory.work) in found
    assert {id(one) for one in (memory.work, *kept)} <= {id(one) for one in held}
    assert set(memory._kept) == {"window", "scratch", "staging", "plan"}


@pytest.mark.parametrize(
    ("chain", "is_taken"),
    [([ZSTD], True), ([LZ4], True), ([], True), ([blosc("lz4", "shuffle")], False)],
    ids=["zstd", "lz4", "raw", "blosc"],
)
def test_large_parts_of_blosc_frames_are_left_to_several_threads(
    chain, is_taken, taken, tmp_path
):
    a = noise(tmp_path, chain)
    for rows in (slice(130, 140), slice(3, 500)):
        assert_same_bits(a[rows, 5:], NOISE[rows, 5:])
    assert taken == [True, is_taken]


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(FUSED, id="no short ways"),
        pytest.param(SINGLE.but(compile_nbytes=2**62), id="no loops"),
        pytest.param(SINGLE.but(memory_limit=1024), id="little memory"),
    ],
)
def test_options_are_heeded(options, taken, tmp_path):
    place = stored([ZSTD]).placed("local", tmp_path)
    a = gpushard.open_array(place, options=options, device="cpu")
    for _ in range(2):
        assert_same_bits(a[INSIDE], VALUES[INSIDE])
    assert not any(taken)


def test_the_limit_of_inner_chunks_is_heeded(array, taken):
    options = array.source.options.but(max_chunk_nbytes=1024)
    b = gpushard.Array(replace(array.source, options=options))
    with pytest.raises(gpushard.LimitError):
        b[INSIDE]
    assert not taken


def test_nothing_is_loaded_for_it(taken, monkeypatch, tmp_path):
    monkeypatch.setattr(choice, "_loaded", [])
    options = SINGLE.but(compile_nbytes=2**62)
    place = stored([ZSTD]).placed("local", tmp_path)
    a = gpushard.open_array(place, options=options, device="cpu")
    assert_same_bits(a[INSIDE], VALUES[INSIDE])
    assert not taken
    assert not choice._loaded
