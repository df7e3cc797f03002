"""An emulated GPU that gets stuck in work of a decoder, by the stand-in for CuPy."""

from __future__ import annotations

from cuda_cases import KERNELS, LateDevice
from cuda_host import cupy_standin
from cuda_host.device import EmulatedDevice
from cuda_host.standin import load_standin


class StuckDevice(LateDevice):
    """Never ends the work of the decoder with number `victim`, nor its stream's.

    Until `goes_on`. As a real one, it then neither loads kernels nor pins memory.
    """

    victim = -1
    goes_on = False
    stuck = None
    n_decodes = 0

    def queue(self, stream, kind, what, run):
        super().queue(stream, kind, what, run)
        if kind == "decode":
            if self.n_decodes == self.victim:
                self.stuck = self._streams[stream][-1]
            self.n_decodes += 1

    def _is_ready(self, queue):
        is_stuck = bool(queue) and queue[0] is self.stuck and not self.goes_on
        return super()._is_ready(queue) and not is_stuck

    @property
    def is_stuck(self):
        """Whether the work has begun that does not end."""
        return not self.goes_on and any(
            bool(queue) and queue[0] is self.stuck for queue in self._streams.values()
        )


def standing_in(monkeypatch, place):
    """The first GPU; what is compiled for it goes below `place`."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(place / "cache"))
    standin = load_standin()
    device, other = StuckDevice(KERNELS, standin), EmulatedDevice(KERNELS, standin)
    device.cupy = cupy_standin.install(monkeypatch, device, other)
    return device
