"""The compiled LZ4 decoder: exact, within its bounds, never laxer than others."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lz4_blocks import (
    Decoding,
    GuardedRoom,
    decoded_by_library,
    encoded,
    is_illegal,
    made_up,
    mutated,
    sample,
    sequence,
    sequences,
)

pytest.importorskip("numba", reason="the compiled loops need numba (extra `fast`)")

MOST = 1 << 17
ENDS = pytest.mark.parametrize("at_end", [False, True], ids=["start", "end"])


@pytest.fixture(scope="module")
def decode():
    return Decoding(MOST)


def assert_decodes(decode, data: bytes, block: bytes) -> None:
    for at_end in (False, True):
        assert decode(block, len(data), at_end=at_end) == data


@st.composite
def texts(draw) -> bytes:
    """Pieces of runs, noise, and repetitions of what stood a little before."""
    data = b""
    for _ in range(draw(st.integers(1, 8))):
        piece = draw(st.binary(min_size=1, max_size=24))
        if data and draw(st.booleans()):
            piece = data[-draw(st.integers(1, 20)) :]
        data += piece * draw(st.sampled_from([1, 1, 2, 5, 30, 300]))
    return data


@given(texts(), st.sampled_from([1, 50, 65537]))
def test_what_the_reference_encodes_is_decoded_exactly(decode, data, acceleration):
    assert_decodes(decode, data, encoded(data, acceleration))


@given(texts(), st.floats(0, 1), st.booleans())
def test_the_first_bytes_of_a_block_are_decoded_alone(decode, data, part, at_end):
    block, enough = encoded(data), round(part * len(data))
    got = decode(block, len(data), at_end=at_end, enough=enough)
    assert got == data[:enough]


def test_what_lies_behind_enough_bytes_is_not_decoded(decode):
    data = np.random.default_rng(0).integers(0, 4, 5000, np.uint8).tobytes()
    block = encoded(data)
    bad = block[:-300] + bytes(300)
    assert decode(bad, len(data), at_end=True) is None
    assert decode(bad, len(data), at_end=True, enough=4000) == data[:4000]


@ENDS
def test_of_damaged_blocks_the_first_bytes_are_those_of_the_whole(decode, at_end):
    rng = np.random.default_rng(at_end)
    n_more = 0
    for i in range(3000):
        data = sample(rng)
        block = mutated(rng, encoded(data))
        whole = decode(block, len(data), at_end=at_end)
        enough = int(rng.integers(len(data) + 1))
        part = decode(block, len(data), at_end=at_end, enough=enough)
        if whole is None:
            n_more += part is not None
        else:
            assert part == whole[:enough], i
    assert n_more > 100


def test_tiny_outputs_are_decoded_exactly(decode):
    for n in range(1, 80):
        for data in (b"\7" * n, bytes(range(n)), (b"abc" * n)[:n]):
            assert_decodes(decode, data, encoded(data))
            assert_decodes(decode, data, sequence(data, None))


@pytest.mark.parametrize("n", [269, 270, 271, 524, 525, 526, 5000, 65535, 65536, MOST])
def test_long_lengths_are_decoded_exactly(decode, n):
    rng = np.random.default_rng(n)
    for data in (rng.bytes(n), b"\0" * n, rng.integers(0, 4, n, np.uint8).tobytes()):
        block = encoded(data)
        if len(block) <= MOST:
            assert_decodes(decode, data, block)


@pytest.mark.parametrize("n_match", [4, 7, 8, 15, 16, 17, 18, 19, 20, 33, 273, 274])
def test_matches_that_overlap_what_they_write_are_decoded_exactly(decode, n_match):
    for distance in (*range(1, 41), 255, 256, 1000):
        start = np.random.default_rng(distance).bytes(distance)
        match = (start * (n_match // distance + 1))[:n_match]
        block = sequence(start, distance, n_match)
        # The last literals decide whether wide copies are allowed.
        for n_last in (5, 6, 7, 8, 12, 15, 16, 22, 23, 40, 300):
            some = block + sequence(bytes(n_last), None)
            want = start + match + bytes(n_last)
            if n_match + n_last < 12:
                assert decode(some, len(want), at_end=True) is None
            else:
                assert_decodes(decode, want, some)
        # Once more behind it, where the output has far to go.
        again = (start + match)[-distance:] * (n_match // distance + 1)
        block += sequence(b"", distance, n_match) + sequence(bytes(300), None)
        assert_decodes(decode, start + match + again[:n_match] + bytes(300), block)


@pytest.mark.parametrize("n_literals", [0, 1, 14, 15, 16, 31, 32, 33, 269, 270])
def test_sequences_at_every_distance_from_the_ends_are_decoded_exactly(
    decode, n_literals
):
    """Copies in wide steps must not reach beyond."""
    start = np.random.default_rng(n_literals).bytes(20)
    literals = np.random.default_rng(5).bytes(n_literals)
    for n_match, distance in [(4, 8), (18, 5), (18, 20), (19, 3), (273, 17), (274, 1)]:
        block = sequence(start, 20, 4) + sequence(literals, distance, n_match)
        want = start + start[:4] + literals
        for _ in range(n_match):
            want += want[-distance:][:1]
        for n_last in range(8 if n_match == 4 else 5, 80):
            last = bytes(range(n_last))
            assert_decodes(decode, want + last, block + sequence(last, None))


def test_the_farthest_match_is_decoded_exactly(decode):
    data = np.random.default_rng(3).bytes(65535)
    block = sequence(data, 65535, 40) + sequence(b"12345", None)
    assert_decodes(decode, data + data[:40] + b"12345", block)
    block = sequence(data[:-1], 65535, 40) + sequence(b"12345", None)
    assert decode(block, 65534 + 45, at_end=True) is None


@ENDS
@pytest.mark.parametrize("seed", range(4))
def test_damaged_blocks_are_decoded_as_by_the_reference_or_refused(
    decode, seed, at_end
):
    rng = np.random.default_rng([seed, at_end])
    found: Counter[str] = Counter()
    data = block = b""
    for i in range(1500):
        if i % 50 == 0:
            data = sample(rng)
            block = encoded(data)
        some, n = mutated(rng, block), len(data)
        if i % 3 == 0:
            some, n = made_up(rng)
            some = mutated(rng, some) if i % 6 else some
        if i % 4 == 0:
            n += int(rng.integers(-20, 21))
        n = max(n, 1)
        want = decoded_by_library(some, n)
        got = decode(some, n, at_end=at_end)
        if got is None and want is not None:
            assert is_illegal(some, n), (some, n)
            found["stricter"] += 1
        else:
            assert got == want, (some, n)
            found["refused" if want is None else "decoded"] += 1
    assert min(found["refused"], found["decoded"]) > 250
    assert found["stricter"] < 75


@ENDS
def test_every_truncation_and_every_wrong_size_is_refused(decode, at_end):
    rng = np.random.default_rng(8)
    for _ in range(12):
        data = sample(rng)
        block = encoded(data)
        for n in range(0, len(block), max(1, len(block) // 150)):
            assert decode(block[:n], len(data), at_end=at_end) is None
        for n in range(max(1, len(data) - 40), len(data) + 40):
            got = decode(block, n, at_end=at_end)
            assert got == (data if n == len(data) else None)
        for rest in (b"\0", b"\0\0\0", b"\x10a", block):
            assert decode(block + rest, len(data), at_end=at_end) is None


@ENDS
@pytest.mark.parametrize(
    "head",
    [b"\xf0", b"\x0f", b"\x1fa\1\0", b"\xf0" + bytes(20), b"\x10"],
    ids=["literals", "match", "overlap", "twenty", "one"],
)
def test_lengths_that_never_end_are_refused(decode, head, at_end):
    for n in (0, 1, 15, 16, 17, 300, 60000):
        assert decode(head + b"\xff" * n, 1000, at_end=at_end) is None


def test_the_reference_is_laxer_only_about_the_last_bytes_and_no_distance(decode):
    """Those few go the plain way, which reads them."""
    # A match that ends in the last five bytes, met on the reference's short cut.
    block = sequence(bytes(13), 13, 17) + sequence(b"1234", None)
    assert decoded_by_library(block, 34) == bytes(30) + b"1234"
    assert decode(block, 34, at_end=True) is None
    block = sequence(bytes(14), 0, 8) + sequence(bytes(30), None)
    assert decoded_by_library(block, 52) is not None
    assert decode(block, 52, at_end=True) is None


def test_sequences_are_taken_apart_as_they_were_put_together():
    parts = [(0, 9, 4), (14, 1, 18), (15, 2, 19), (269, 3, 273), (270, 65535, 274)]
    block = b"".join(sequence(bytes(n), d, m) for n, d, m in parts)
    assert sequences(block + sequence(b"last", None)) == parts


def test_guarded_rooms_are_put_to_their_very_ends():
    room = GuardedRoom(100)
    assert room.place(b"abc", at_end=True) + 3 == room.stop
    assert room.place(b"abc", at_end=False) == room.start
    assert room.nbytes % 4096 == 0
