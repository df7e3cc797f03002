"""What a forked process makes anew: locks that lost threads of its parent may hold."""

from __future__ import annotations

import os
from collections.abc import Callable
from weakref import WeakMethod

_renewals: set[WeakMethod[Callable[[], None]]] = set()


def after_fork(renew: Callable[[], None]) -> None:
    """Call a method in each forked process, as long as its object is there."""
    _renewals.add(WeakMethod(renew, _renewals.discard))


def _renew_all() -> None:
    for known in list(_renewals):
        renew = known()
        if renew is not None:
            renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)
