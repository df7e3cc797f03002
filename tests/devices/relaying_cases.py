"""Devices and arrays for the tests of relays."""

from __future__ import annotations

import gpushard
from cuda_host.copier import EmulatedCopier
from device_fetch_cases import LockedDevice, emulated, small_batches
from gpushard.device_reading import relayed, sink
from gpushard.options import Options

OPTIONS = Options(compile_nbytes=0, threads=4)


def use_small_pieces(monkeypatch) -> None:
    """Pieces of 128 bytes, so that the smallest arrays have many."""
    monkeypatch.setattr(relayed, "_SHARE_NBYTES", 1)
    monkeypatch.setattr(relayed, "_LEAST_PIECE_NBYTES", 64)
    monkeypatch.setattr(relayed, "_PIECE_NBYTES", 128)
    monkeypatch.setattr(relayed, "usable_cpu_count", lambda: 4)


def relaying(kind=LockedDevice, refuses=None):
    """An emulated device to which compiled code can copy."""
    device = emulated(kind, seed=1)
    device.copier = EmulatedCopier(device, refuses)
    return device


def opened(place, options=OPTIONS):
    return gpushard.open_array(place, options=options)


def in_small_batches(monkeypatch, nbytes=1024):
    monkeypatch.setattr(sink.Budget, "of", lambda *_, **__: small_batches(nbytes))
