"""Waits for a device, with no wait in the driver (compiled).

This is imported only once reads are large enough to pay for it. The driver's own waits
have no end (see `devices.waiting`), and no thread needs the interpreter.
"""

from __future__ import annotations

from gpushard.fused.compiled import calls
from gpushard.fused.words import Poll


@calls.inner
def _polled(p: Poll) -> int:
    sleep_ns = p.sleep_ns
    status = calls.call_query(p.query, (p.handle,))
    for _ in range(p.n_sleeps):
        if status != p.not_ready:
            break
        calls.call_sleep(p.sleep, (sleep_ns // 1000,))
        sleep_ns = min(sleep_ns + (sleep_ns >> p.growth_bits), p.most_sleep_ns)
        status = calls.call_query(p.query, (p.handle,))
    return status


@calls.inner
def poll(p: Poll) -> int:
    """What the driver answers once that is not `not_ready`, or after all sleeps.

    The driver's context is that of the calling thread meanwhile.
    """
    status = calls.call_context(p.get_context, (p.saved,))
    if status == 0:
        status = calls.call_context(p.set_context, (p.context,))
        if status == 0:
            status = _polled(p)
        calls.call_context(p.set_context, (calls.word(p.saved, 0),))
    return status
