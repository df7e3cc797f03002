"""A rolling array that is moved, written to and read, in a store that fails at times.

Input: two bytes that choose the store and where the window begins, then steps of three:
what is done, and whether a reader takes the new window then; and two numbers for it.
One kind of step lets a call of the store fail in the next one, before or after it is
done; another lets the next one happen in the middle of a read.

What returns is done, and what is refused has changed nothing. What the store has failed
has moved the window, and then all that is to be in it is there, or has not, and then
nothing of it is gone. A read is of one window, and never has the fill value for what
has rolled off.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from fuzz.mutations import damaged, damaged_steps
from fuzz.refusals import assert_is_told
from fuzz.rolling_changes import CHANGES
from fuzz.rolling_model import FILL, SHARD, WIDTH, Change, Model, Sides
from gpushard import GpushardError, Options
from gpushard.errors import ObjectChangedError, StoreError, WindowMovedError
from gpushard.rolling import RollingArray
from gpushard.stores.local.files import FileWriter
from gpushard.stores.local.store import LocalStore

if TYPE_CHECKING:
    import random

NAME = "rolling"

_MOST_STEPS = 16
_ORIGINS = (0, 1, -1, -3, 2**40, -(2**40))
_ARRAYS: tuple[dict[str, Any], ...] = (
    {"chunks": (1, 2), "shards": (SHARD, WIDTH)},
    {"chunks": (SHARD, 2), "shards": (SHARD, WIDTH), "compressors": None},
    {"chunks": (SHARD, WIDTH)},
)
_HAS_OBJECTS = find_spec("obstore") is not None
_FAILING, _BESIDE = 0, 1
_N_KINDS = len(CHANGES) + 2


class _Calls:
    """Calls of a store: one may fail, and something may happen ahead of another."""

    def __init__(self) -> None:
        self.n_left = -1
        self._is_done_first = False
        self._happens: Callable[[], object] | None = None

    def fail_at(self, n: int, *, is_done: bool) -> None:
        """Let the call after `n` others fail, once it `is_done` or before."""
        self.n_left, self._is_done_first = n, is_done

    def happen_at(self, n: int, work: Callable[[], object]) -> None:
        """Let `work` be done ahead of the read after `n` others."""
        self.n_left, self._happens = n, work

    def end(self) -> bool:
        """Let nothing more happen; whether something has."""
        has_happened, self.n_left, self._happens = self.n_left < 0, -1, None
        return has_happened

    def changing(self, call: Callable[..., Any], *given: Any, **named: Any) -> Any:
        """A call that changes what is stored."""
        is_mine = self._happens is None and self._is_next()
        if is_mine and not self._is_done_first:
            raise StoreError("the store is away")
        answer = call(*given, **named)
        if is_mine:
            raise StoreError("the answer is lost")
        return answer

    def reading(self, call: Callable[..., Any], *given: Any) -> Any:
        """A call that reads."""
        if self._happens is not None and self._is_next():
            self._happens()
        return call(*given)

    def _is_next(self) -> bool:
        if self.n_left < 0:
            return False
        self.n_left -= 1
        return self.n_left < 0


@contextmanager
def _watched(calls: _Calls) -> Iterator[None]:
    """Let calls of stores and writers be seen."""
    kinds: list[tuple[type, type]] = [(LocalStore, FileWriter)]
    if _HAS_OBJECTS:
        from gpushard.stores.remote import RemoteStore
        from gpushard.stores.writers import ObjectWriter

        kinds.append((RemoteStore, ObjectWriter))
    with ExitStack() as stack:
        for store, writer in kinds:
            _patch(stack, store, "read", calls.reading)
            for name in ("put", "update", "create", "delete"):
                _patch(stack, writer, name, calls.changing)
        yield


def _patch(stack: ExitStack, kind: type, name: str, through: Any) -> None:
    call = getattr(kind, name)

    def patched(self: Any, *given: Any, **named: Any) -> Any:
        return through(partial(call, self), *given, **named)

    stack.enter_context(mock.patch.object(kind, name, patched))


def seeds() -> list[bytes]:
    grown = bytes([2, 4, 0, 4 + _N_KINDS, 1, 0])
    ends = [bytes([k, n, m]) for k in range(2, 12) for n, m in ((2, 0), (1, 5))]
    aheads = (b"", bytes([_FAILING, 1, 1]), bytes([_BESIDE, 0, 1]))
    # Ends within a shard, is written to its end, and is as long as before.
    cut = bytes([2, 2, 0, 6, 3, 3, 10, 2, 1, 6, 3, 5])
    # Deletes a shard of the window, which then ends within it.
    gone = bytes.fromhex("020400100100010010000210001443dc0106020004a404")
    # Deletes a shard, writes a row of it, and moves on before a reader does.
    again = bytes.fromhex("0279df40 0481203b 010a6c2e 20278cae da3e1103 b6")
    return (
        [bytes([k, 0]) + cut for k in range(2)]
        + [bytes([3, 2]) + gone, bytes([13, 0]) + again]
        + [
            bytes([k % 16, k % 7]) + grown + ahead + end
            for k, (ahead, end) in enumerate((a, e) for a in aheads for e in ends)
        ]
    )


def mutate(data: bytes, rng: random.Random) -> bytes:
    """A step more, fewer, twice or another; or other bytes."""
    if len(data) < 2 or rng.random() < 0.1:
        return damaged(data, rng)
    return damaged_steps(data, rng, 2, range(2 * _N_KINDS))


def check(data: bytes) -> bool:
    if len(data) < 2:
        return False
    steps = [data[i : i + 3] for i in range(2, len(data) - 2, 3)][:_MOST_STEPS]
    origin = _ORIGINS[data[1] % len(_ORIGINS)]
    with _place(in_memory=bool(data[0] & 1)) as place:
        return _Run(place, data[0], origin).all(steps)


@contextmanager
def _place(*, in_memory: bool) -> Iterator[Any]:
    """An object store in memory, or a directory."""
    if in_memory and _HAS_OBJECTS:
        import obstore

        yield obstore.store.MemoryStore()
        return
    place = Path(tempfile.mkdtemp(dir=_root()))
    try:
        yield place
    finally:
        shutil.rmtree(place)


@cache
def _root() -> str | None:
    in_memory = "/dev/shm"  # where waiting for the disk costs nothing
    return in_memory if Path(in_memory).is_dir() else None


class _Run:
    """One input: an array that is changed, a reader of it, a view, and the model."""

    def __init__(self, place: Any, flags: int, origin: int) -> None:
        n_small = 8 if flags & 2 else 0
        options = Options(threads=1, small_read_chunks=n_small, compile_nbytes=2**62)
        kinds = {"dtype": "i4", "fill_value": FILL, "options": options}
        array = _ARRAYS[flags // 4 % len(_ARRAYS)]
        shape = (0, WIDTH)
        self.a = RollingArray.create(
            place, origin=origin, shape=shape, **kinds, **array
        )
        self.reader = RollingArray.open(place, options=options)
        self.view = self.reader.view()
        self.model = Model(origin * SHARD, origin * SHARD)
        self.calls = _Calls()

    def all(self, steps: list[bytes]) -> bool:
        """Whether every step was accepted."""
        accepted, ahead = True, bytes([_N_KINDS, 0, 0])
        with _watched(self.calls):
            for step in steps:
                kind = step[0] % _N_KINDS
                if kind in (_FAILING, _BESIDE):
                    ahead = bytes([kind]) + step[1:]
                    continue
                change = CHANGES[kind - 2](self.model, step[1], step[2])
                if ahead[0] == _BESIDE:
                    accepted &= self._beside(change, ahead[1] % 4, ahead[2])
                else:
                    if ahead[0] == _FAILING:
                        self.calls.fail_at(ahead[1] % 8, is_done=bool(ahead[2] & 1))
                    accepted &= self._done(change)
                self._look()
                if step[0] >= _N_KINDS:
                    self.view = self.reader.refresh().view()
                ahead = bytes([_N_KINDS, 0, 0])
        return accepted

    def _done(self, change: Change) -> bool:
        """Whether a change was accepted; the model is what it left."""
        error = _refusal(lambda: change.work(self.a))
        has_failed = self.calls.end()
        if error is None:
            assert change.is_valid
            self.model.do(change)
            assert _sides(self.a) == self.model.window
            return True
        found = _sides(self.a.refresh())
        if has_failed and change.is_valid and isinstance(error, StoreError):
            assert found in (self.model.window, change.window), found
            self.model.doubt(change, found)
        else:
            is_met = isinstance(error, StoreError) and change.may_meet
            assert is_met or not change.is_valid, error
            assert found == self.model.window, found
        return False

    def _beside(self, change: Change, nth: int, which: int) -> bool:
        """Whether a change was accepted in the middle of a read."""
        accepted: list[bool] = []
        before = self.model.copy()
        one: Any = (self.reader, self.view, self.reader.view(), self.a.view())[
            which % 4
        ]
        self.calls.happen_at(nth, lambda: accepted.append(self._done(change)))
        found: list[Any] = []
        error = _refusal(lambda: found.append(one[...]))
        self.calls.end()
        if error is None:
            before.hold_to(_sides(one)[0], found[0], change if accepted else None)
        elif one is self.reader:  # which follows the window
            assert accepted, error
            assert isinstance(error, ObjectChangedError), error
        else:
            assert isinstance(error, WindowMovedError | ObjectChangedError), error
        return accepted[0] if accepted else self._done(change)

    def _look(self) -> None:
        """Hold what is there to the model, through all that reads it."""
        self.model.hold_to(self.model.start, self.a[...])
        got = self.reader[...]  # which may take another window
        self.model.hold_to(_sides(self.reader)[0], got)
        found: list[Any] = []
        error = _refusal(lambda: found.append(self.view[...]))
        start, stop = _sides(self.view)
        if error is None:
            self.model.hold_to(start, found[0])
            return
        assert isinstance(error, WindowMovedError), error
        assert start < self.model.start or stop > self.model.stop, error
        self.view = self.reader.refresh().view()


def _refusal(work: Callable[[], object]) -> GpushardError | None:
    """What refused some work; None where it was done."""
    try:
        work()
    except GpushardError as error:
        assert_is_told(error)
        return error
    return None


def _sides(a: Any) -> Sides:
    return a.domain[0].start, a.domain[0].stop
