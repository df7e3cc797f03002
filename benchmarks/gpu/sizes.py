"""How much is measured: for a GPU, or to see that it runs at all."""

from __future__ import annotations

from typing import NamedTuple

from benchmarks.configs import KIB, MIB

GIB = 1024 * MIB
FEW_NBYTES = 4 * KIB
CODECS = ("zstd", "blosc-lz4", "blosc-zstd", "lz4", "gzip", "none")


class Sizes(NamedTuple):
    """Amounts of a run.

    Attributes
    ----------
    whole_nbytes
        Decoded sizes of the arrays that are read whole.
    inner_nbytes
        Sizes of inner chunks; the one at `usual` wherever there is one only.
    sweep_nbytes, peer_nbytes
        Decoded size of the arrays of every inner chunk size, and of those that others
        read, too.
    peer_few_nbytes
        The same where inner chunks have at most `FEW_NBYTES`: some peers take a
        millisecond for each.
    distinct_nbytes
        What of an array is different: the rest is the same files again, under other
        names. More than the caches of a processor or a GPU hold.
    shard_nbytes, width
        Of an array: bytes of a shard, elements of a row.
    copy_nbytes
        Bytes of a copy.
    stream_nbytes
        Decoded bytes of a batch of the vendor's decoder, at the most.
    n_streams
        Streams of such a batch: all numbers that fit, or else the first one.
    repetitions
        How often each is timed.
    n_images, n_batch_images
        Images that a training reads, and those of a step.
    n_distinct_images, n_shard_images, n_inner_images
        Those that differ, and those of a shard and of an inner chunk.
    """

    whole_nbytes: tuple[int, ...]
    inner_nbytes: tuple[int, ...]
    usual: int
    sweep_nbytes: int
    peer_nbytes: int
    peer_few_nbytes: int
    distinct_nbytes: int
    shard_nbytes: int
    width: int
    copy_nbytes: int
    stream_nbytes: int
    n_streams: tuple[int, ...]
    repetitions: int
    n_images: int
    n_batch_images: int
    n_distinct_images: int
    n_shard_images: int
    n_inner_images: int

    def peer_nbytes_of(self, inner_nbytes: int) -> int:
        """Decoded size of the array with such inner chunks that others read."""
        is_few = inner_nbytes <= FEW_NBYTES
        return self.peer_few_nbytes if is_few else self.peer_nbytes


FULL = Sizes(
    whole_nbytes=(GIB, 8 * GIB),
    inner_nbytes=(
        *(4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB),
        *(MIB, 4 * MIB, 16 * MIB),
    ),
    usual=64 * KIB,
    sweep_nbytes=GIB,
    peer_nbytes=256 * MIB,
    peer_few_nbytes=16 * MIB,
    distinct_nbytes=128 * MIB,
    shard_nbytes=32 * MIB,
    width=4096,
    copy_nbytes=GIB,
    stream_nbytes=GIB,
    n_streams=(256, 1024, 4096, 16384, 65536, 262144),
    repetitions=5,
    n_images=131_072,
    n_batch_images=512,
    n_distinct_images=16_384,
    n_shard_images=4096,
    n_inner_images=32,
)
# For a machine that is lent for minutes.
SHORT = FULL._replace(
    inner_nbytes=(4 * KIB, 64 * KIB, MIB, 16 * MIB),
    stream_nbytes=256 * MIB,
    n_streams=(1024, 4096, 16384, 65536),
    repetitions=3,
)
TINY = Sizes(
    whole_nbytes=(32 * KIB,),
    inner_nbytes=(2 * KIB,),
    usual=2 * KIB,
    sweep_nbytes=16 * KIB,
    peer_nbytes=16 * KIB,
    peer_few_nbytes=8 * KIB,
    distinct_nbytes=16 * KIB,
    shard_nbytes=8 * KIB,
    width=64,
    copy_nbytes=64 * KIB,
    stream_nbytes=8 * KIB,
    n_streams=(256, 1024),
    repetitions=1,
    n_images=256,
    n_batch_images=32,
    n_distinct_images=128,
    n_shard_images=64,
    n_inner_images=8,
)
SIZES = {"full": FULL, "short": SHORT, "tiny": TINY}
