"""What a forked process makes anew: locks that lost threads of its parent may hold."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import MethodType
from typing import Any
from weakref import WeakKeyDictionary

# A `WeakMethod` may fail, and say so on stderr, when it is collected with its object.
_renewals: WeakKeyDictionary[object, Callable[[Any], None]] = WeakKeyDictionary()


def after_fork(renew: MethodType) -> None:
    """Call a method in each forked process, as long as its object is there.

    An object has one such method.
    """
    _renewals[renew.__self__] = renew.__func__


def _renew_all() -> None:
    for owner, renew in list(_renewals.items()):
        renew(owner)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)
