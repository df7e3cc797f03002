"""Codec chain -> inner chunks on the host, one at a time.

A chain is compiled once per array, and planned once per shape of inner chunks.
Bytes-to-bytes codecs run last to first, then the bytes are viewed as elements, then
array-to-array codecs run last to first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpushard import codecs
from gpushard.codecs.base import ArrayPart, BytesCodec, HostBytes, size_error
from gpushard.codecs.elements import ElementsPart, compile_elements
from gpushard.codecs.sizes import extra_nbytes, grown_sizes
from gpushard.codecs.trial import try_out
from gpushard.errors import CorruptShardError
from gpushard.layout import CodecChain, Elements
from gpushard.options import DEFAULT
from gpushard.report import CodecPlacement

# Plans kept: arrays have one shape of inner chunks, rectilinear arrays a few.
_MAX_PLANS = 256
# Text is held in decoded form, as Python strings (up to four bytes per byte, and again
# in UTF-8), and as NumPy strings, whose memory grows by a quarter at a time.
_TEXT_COPIES = 8
_ON_HOST = "the device is the CPU"
_ONLY_ZARR = "only zarr decodes this codec"


class NoRoomError(Exception):
    """Decoding takes more memory than it was given: `nbytes`."""

    def __init__(self, nbytes: int) -> None:
        super().__init__(nbytes)
        self.nbytes = nbytes


_BytesStep = tuple[Callable[..., HostBytes], int, bool]
"""Decoder of a bytes-to-bytes codec, its `limit`, and whether that is exact."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """A chain for one shape of inner chunks; steps in decoding order.

    `most_nbytes` bounds decoded bytes whose size neither metadata nor a codec gives.
    """

    steps: tuple[_BytesStep, ...]
    finish: Callable[[HostBytes], NDArray[Any]]
    most_nbytes: int | None


class HostPipeline:
    """A codec chain, ready to decode inner chunks on the host.

    May be called from several threads at once.

    Attributes
    ----------
    bytes_codecs
        Bytes-to-bytes codecs, in encoding order.
    is_raw
        Whether a payload is nothing but elements: a range of its bytes is a range of
        elements, viewed as `stored_dtype`.
    has_plain_elements
        Whether the bytes-to-bytes codecs decode to nothing but elements.
    decodes_ranges
        Whether a part of the plain elements can be decoded faster than all.
    holds_ranges
        Whether decoding such a part holds only this part.
    stored_dtype
        Data type as which plain elements are viewed, byte order included (uint8 for
        bool, because only 0 and 1 may be viewed as bool).
    """

    def __init__(
        self,
        dtype: np.dtype[Any],
        array_part: ArrayPart,
        bytes_codecs: tuple[BytesCodec, ...],
        largest_nbytes: int = DEFAULT.max_chunk_nbytes,
    ) -> None:
        self.bytes_codecs = bytes_codecs
        self._array_part = array_part
        self._largest_nbytes = largest_nbytes
        self._plans: dict[tuple[int, ...], _Plan] = {}
        # Method of the first codec after the elements, if it decodes parts of streams.
        innermost = bytes_codecs[0] if bytes_codecs else None
        self._decode_range: Callable[..., HostBytes | None] | None = None
        self._range_nbytes: Callable[..., int | None] | None = None
        self._axes: tuple[int, ...] | None = None
        self.is_raw = self.has_plain_elements = False
        self.stored_dtype = dtype
        if isinstance(array_part, ElementsPart) and not array_part.has_filters:
            self._axes = array_part.axis_order
            self.has_plain_elements = array_part.elements.is_castable
            self.is_raw = not bytes_codecs and self.has_plain_elements
            self.stored_dtype = array_part.elements.view_dtype
            if self.has_plain_elements:
                self._decode_range = getattr(innermost, "decode_range", None)
                if len(bytes_codecs) == 1:
                    self._range_nbytes = getattr(innermost, "range_nbytes", None)
        self.decodes_ranges = self._decode_range is not None
        self.holds_ranges = self.decodes_ranges and hasattr(innermost, "range_nbytes")

    @classmethod
    def compile(
        cls,
        chain: CodecChain,
        elements: Elements,
        *,
        chunk_shape: tuple[int, ...] | None = None,
        largest_nbytes: int = DEFAULT.max_chunk_nbytes,
    ) -> HostPipeline:
        """Pipeline that decodes inner chunks encoded by `chain`.

        Parameters
        ----------
        chain, elements
            The codecs, and what they encode.
        chunk_shape
            Shape of an inner chunk in the axes that the chain encodes, if codecs are to
            be tried out on the data type (see `codecs/trial.py`).
        largest_nbytes
            Decoded bytes accepted if neither the metadata nor a codec bounds them
            (strings).

        Raises
        ------
        MetadataError
            A codec's configuration is wrong, or it does not fit the data type.
        UnsupportedError
            Neither gpushard nor zarr knows a codec, or a package is missing.
        """
        dtype = elements.dtype
        part: ArrayPart | None = compile_elements(chain, dtype)
        if part is None:
            from gpushard.codecs.zarr_codec import array_part

            specs = (*chain.array_array, chain.array_bytes)
            part = array_part(specs, elements)
        if chunk_shape is not None:
            try_out(part, chain, dtype, chunk_shape)
        bytes_codecs = tuple(codecs.bytes_codec(spec) for spec in chain.bytes_bytes)
        return cls(dtype, part, bytes_codecs, largest_nbytes)

    def axis_order(self, ndim: int) -> tuple[int, ...]:
        """Order of the axes in plain elements.

        The payload is in C order over the stored axes; stored axis k is axis
        ``axis_order[k]`` of the inner chunk.
        """
        return self._axes or tuple(range(ndim))

    def payload_nbytes(self, chunk_shape: tuple[int, ...]) -> int | None:
        """Encoded size of an inner chunk; None if it depends on the elements."""
        *_, (nbytes, exact) = self._sizes(chunk_shape)
        return nbytes if exact else None

    def working_nbytes(self, chunk_shape: tuple[int, ...]) -> int:
        """Memory that decoding an inner chunk takes besides its stored bytes.

        This is for usual streams; some take `extra_nbytes` more. For strings it is the
        memory besides their text.
        """
        working = self._array_part.working_nbytes(chunk_shape)
        if self._array_part.encoded_nbytes(chunk_shape) is None:
            return working
        peak = held = 0
        decoded = self._decoded_nbytes(chunk_shape)
        for codec, nbytes in zip(self.bytes_codecs[::-1], decoded[::-1], strict=True):
            taken = codec.n_copies * nbytes + codec.beside_nbytes(nbytes)
            peak = max(peak, held + taken)
            held = nbytes if codec.n_copies else held
        return max(peak, held + working)

    def extra_nbytes(self, encoded: HostBytes, chunk_shape: tuple[int, ...]) -> int:
        """Memory that these bytes need besides `working_nbytes`, as their head says.

        Raises
        ------
        CorruptShardError
            The bytes have no valid head.
        """
        decoded = self._decoded_nbytes(chunk_shape)
        return extra_nbytes(self.bytes_codecs, decoded, encoded)

    def encoded_limit(self, chunk_shape: tuple[int, ...]) -> int:
        """Generous bound of the encoded size that a reasonable writer produces."""
        *_, (limit, _) = self._sizes(chunk_shape)
        return limit

    def refuse_oversized(self, nbytes: int, shape: tuple[int, ...]) -> None:
        """Refuse an index entry that would make a read fetch far more than it decodes.

        Raises
        ------
        CorruptShardError
            No sane encoding of an inner chunk of `shape` takes `nbytes`.
        """
        limit = self.encoded_limit(shape)
        if nbytes > limit:
            hint = "the shard is damaged: restore it from a copy or write it again"
            if self._array_part.encoded_nbytes(shape) is None:
                hint = f"{hint}, or raise options.max_chunk_nbytes"
            raise CorruptShardError(
                "an inner chunk is stored in more bytes than any encoding of it needs",
                expected=f"at most {limit} bytes",
                got=nbytes,
                hint=hint,
            )

    def _decoded_nbytes(self, chunk_shape: tuple[int, ...]) -> list[int]:
        """How many bytes each bytes-to-bytes codec decodes to, in encoding order."""
        return [nbytes for nbytes, _ in self._sizes(chunk_shape)[:-1]]

    def _sizes(self, chunk_shape: tuple[int, ...]) -> list[tuple[int, bool]]:
        """Sizes before each bytes-to-bytes codec and after the last; whether exact."""
        nbytes = self._array_part.encoded_nbytes(chunk_shape)
        if nbytes is None:
            return grown_sizes(self.bytes_codecs, self._largest_nbytes, exact=False)
        return grown_sizes(self.bytes_codecs, nbytes, exact=True)

    def decode(
        self,
        encoded: HostBytes,
        chunk_shape: tuple[int, ...],
        wanted: tuple[int, int] | None = None,
        room_nbytes: int | None = None,
    ) -> NDArray[Any]:
        """Inner chunk of `chunk_shape` from its encoded bytes.

        Parameters
        ----------
        encoded
            Exactly one encoded inner chunk.
        chunk_shape
            Its shape, in the axes that the chain encodes.
        wanted
            For a chain that `decodes_ranges`: the half-open byte range of the plain
            elements that is needed. Other bytes of the result have no meaning.
        room_nbytes
            Memory that decoding may take besides the encoded bytes. None means as much
            as needed, which is `working_nbytes` except for rare streams.

        Returns
        -------
        numpy.ndarray
            Shape `chunk_shape`, `dtype` but for byte order, host. May be read-only,
            strided, and a view on `encoded`.

        Raises
        ------
        CorruptShardError
            The bytes are not a valid encoding of such an inner chunk.
        ChecksumError
            The bytes contradict a checksum.
        NoRoomError
            Decoding takes more than `room_nbytes`; it was not started.
        """
        plan = self._plans.get(chunk_shape)
        if plan is None:
            plan = self._plan(chunk_shape)
        if room_nbytes is not None:
            plan = self._within(room_nbytes, plan, encoded, chunk_shape, wanted)
        if wanted is not None and self._decode_range is not None:
            return plan.finish(_decode_part(plan, self._decode_range, encoded, wanted))
        if plan.most_nbytes is not None:
            return self._decode_capped(plan, plan.most_nbytes, encoded, chunk_shape)
        for decode, limit, exact in plan.steps:
            encoded = decode(encoded, limit, exact=exact)
        return plan.finish(encoded)

    def _decode_capped(
        self,
        plan: _Plan,
        most_nbytes: int,
        encoded: HostBytes,
        chunk_shape: tuple[int, ...],
    ) -> NDArray[Any]:
        """Inner chunk whose decoded size only an option bounds."""
        try:
            for decode, limit, exact in plan.steps:
                encoded = decode(encoded, limit, exact=exact)
        except CorruptShardError as error:
            # All limits of the steps follow from `most_nbytes`.
            if error.limit_nbytes is not None:
                if most_nbytes < self._largest_nbytes:
                    least = _TEXT_COPIES * (most_nbytes + 1)
                    needed = self.working_nbytes(chunk_shape) + least
                    raise NoRoomError(needed) from error
                error.hint = f"{error.hint}, or raise options.max_chunk_nbytes"
            raise
        return plan.finish(encoded)

    def _within(
        self,
        room_nbytes: int,
        plan: _Plan,
        encoded: HostBytes,
        chunk_shape: tuple[int, ...],
        wanted: tuple[int, int] | None,
    ) -> _Plan:
        """The plan, if it takes no more than `room_nbytes`."""
        needed = self.working_nbytes(chunk_shape)
        if plan.most_nbytes is not None:
            most = max(0, room_nbytes - needed) // _TEXT_COPIES
            if most >= plan.most_nbytes:
                return plan
            sizes = grown_sizes(self.bytes_codecs, most, exact=False)
            return replace(plan, steps=self._steps(sizes), most_nbytes=most)
        if wanted is not None and self._range_nbytes is not None:
            part_nbytes = self._range_nbytes(encoded, *wanted)
            needed = needed if part_nbytes is None else part_nbytes
        needed += self.extra_nbytes(encoded, chunk_shape)
        if needed > room_nbytes:
            raise NoRoomError(needed)
        return plan

    def placements(self) -> tuple[CodecPlacement, ...]:
        """Where each codec runs and why, in decoding order."""
        after = [(codec.name, codec.library) for codec in self.bytes_codecs]
        return tuple(
            CodecPlacement(
                name,
                "host",
                library,
                _ONLY_ZARR if library.startswith("zarr ") else _ON_HOST,
            )
            for name, library in reversed((*self._array_part.labels, *after))
        )

    def _plan(self, chunk_shape: tuple[int, ...]) -> _Plan:
        sizes = self._sizes(chunk_shape)
        is_capped = self._array_part.encoded_nbytes(chunk_shape) is None
        decoder = self._array_part.decoder(chunk_shape)
        most_nbytes = self._largest_nbytes if is_capped else None
        plan = _Plan(self._steps(sizes), decoder, most_nbytes)
        if len(self._plans) >= _MAX_PLANS:
            self._plans.clear()
        self._plans[chunk_shape] = plan
        return plan

    def _steps(self, sizes: Sequence[tuple[int, bool]]) -> tuple[_BytesStep, ...]:
        steps = [
            (codec.decode, *size)
            for codec, size in zip(self.bytes_codecs, sizes[:-1], strict=True)
        ]
        return tuple(reversed(steps)) or ((self._check_size, *sizes[0]),)

    def _check_size(self, encoded: HostBytes, limit: int, *, exact: bool) -> HostBytes:
        if len(encoded) > limit or (exact and len(encoded) != limit):
            name, _ = self._array_part.labels[-1]
            raise size_error(name, limit, len(encoded), exact=exact)
        return encoded


def _decode_part(
    plan: _Plan,
    decode_range: Callable[..., HostBytes | None],
    encoded: HostBytes,
    wanted: tuple[int, int],
) -> HostBytes:
    *outer, (decode_whole, nbytes, exact) = plan.steps
    for decode, limit, is_exact in outer:
        encoded = decode(encoded, limit, exact=is_exact)
    part = decode_range(encoded, nbytes, *wanted)
    return decode_whole(encoded, nbytes, exact=exact) if part is None else part
