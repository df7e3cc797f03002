"""Array -> what a device does to its inner chunks, and why it does not do more."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpushard.devices.base import Device
from gpushard.devices.decoding.chain import (
    COMPRESSED,
    DeviceChain,
    Step,
    compile_device_chain,
    host_chain,
)
from gpushard.devices.scattering.transfer import Affine, plan_transfer
from gpushard.errors import UnsupportedError
from gpushard.options import GIB
from gpushard.report import CodecPlacement, Tally
from gpushard.source import Source

# Share of the free memory for a read or a write whose limit is left open: room for two
# batches of 4,096 inner chunks of 64 KiB, with the scratch that decoding zstd needs.
_FREE_SHARE, _LARGEST_ROOM_NBYTES = 8, 4 * GIB

_CHAIN = "chain of a device"


def choose_chain(source: Source) -> tuple[DeviceChain | None, str]:
    """What a device does to the inner chunks of an array, and why it does not do more.

    The chain is None if the device cannot even scatter them; the host reads the array
    then. The reason is empty if the device decodes.
    """
    if _CHAIN not in source.facts:
        source.facts[_CHAIN] = _chain_and_why(source)
    return source.facts[_CHAIN]


def _chain_and_why(source: Source) -> tuple[DeviceChain | None, str]:
    shape = source.chunk_shape
    try:
        return compile_device_chain(source.layout, shape), ""
    except UnsupportedError as error:
        why = error.what if error.codec is None else f"{error.codec}: {error.what}"
    dtype = source.layout.dtype
    if shape is None or dtype.hasobject or dtype.kind == "T":
        return None, why
    return host_chain(source.layout, shape), why


def placements(
    source: Source, device: Device, tally: Tally
) -> tuple[CodecPlacement, ...]:
    """Where the read of `tally` decoded each codec of an array, in decoding order."""
    chain, why = choose_chain(source)
    if not why and not tally.counts.get("n_decoded_on_device"):
        n_on_host = tally.counts.get("n_decoded_on_host")
        why = "by the option placement, or its estimates" if n_on_host else ""
    on_host = source.pipeline.placements()
    if chain is None or why:
        return tuple(CodecPlacement(p.codec, "host", p.library, why) for p in on_host)
    steps = list(chain.steps)
    found: list[CodecPlacement] = []
    for p in on_host:
        if steps and steps[0].codec == p.codec:
            found.append(_on_device(steps.pop(0), device))
        else:
            why = "strides and flags of one kernel"
            if p.codec == "numcodecs.bitround":
                why = "rounded numbers are numbers: there is nothing to undo"
            found.append(CodecPlacement(p.codec, "scatter", "gpushard", why))
    return tuple(found)


def kernels_scatter(
    source: Source, dtype: np.dtype[Any], affine: Affine | None
) -> bool:
    """Whether kernels can write an array's elements into outputs of `dtype`."""
    chain, _ = choose_chain(source)
    if chain is None:
        return False
    try:
        plan_transfer(chain.dtype, dtype, is_swapped=chain.is_swapped, affine=affine)
    except UnsupportedError:
        return False
    return True


def room_nbytes(source: Source, device: Device, n_sharing: int = 1) -> int:
    """Bytes that batches of an array may hold on a device.

    A GPU needs thousands of streams to be busy, and each batch takes the host a
    millisecond or more. The default limit of a host has room for only a few streams,
    so a limit that the user left open is raised. A limit that the user set is kept.
    """
    limit = source.options.memory_limit
    chain, why = choose_chain(source)
    if chain is None or why or not source.options.is_left_open:
        return limit
    return max(share_nbytes(device) // n_sharing, limit)


def share_nbytes(device: Device) -> int:
    """Bytes of a device's free memory that go to work whose limit is left open."""
    return min(device.free_nbytes() // _FREE_SHARE, _LARGEST_ROOM_NBYTES)


def _on_device(step: Step, device: Device) -> CodecPlacement:
    is_decoded = step.kind in COMPRESSED
    library = device.decoder.label if is_decoded else "gpushard"
    return CodecPlacement(step.codec, "device", library, device.label)
