"""Waits for a GPU: they ask and sleep, and one that does not end ends all the same."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from types import SimpleNamespace

import pytest

from gpushard.devices import waiting
from gpushard.devices.cuda_copies import QueryCalls
from gpushard.devices.waiting import NOT_READY, RecordedEvent, Waits
from gpushard.errors import DeviceError

_QUERY = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64)
STREAM, OTHER, EVENT, ENTRY = 7, 8, 70, 71


class RefusedError(Exception):
    """An error of CuPy's runtime."""


class Driver:
    """Says of a stream or an event what a test says, and counts the questions.

    `of` has, by handle, a status or when it is done, in seconds of `monotonic`.
    """

    def __init__(self):
        self.of = {STREAM: 0, OTHER: 0, EVENT: 0, ENTRY: 0}
        self.n_asked = 0
        self.of_thread = threading.local()
        self.is_synchronized = False
        self.streamQuery = self.eventQuery = self.answer
        self.CUDARuntimeError = RefusedError

    @property
    def context(self):
        """The driver's context of the calling thread."""
        return getattr(self.of_thread, "context", 5)

    def answer(self, handle):
        self.n_asked += 1
        status = self.of[handle]
        if isinstance(status, float):
            return NOT_READY if time.monotonic() < status else 0
        return status

    def streamSynchronize(self, _):  # noqa: N802  CuPy's name
        self.is_synchronized = True


def by_address(driver):
    """The driver's functions for compiled code, and what keeps them."""

    def get_context(at):
        ctypes.c_uint64.from_address(at).value = driver.context
        return 0

    def set_context(context):
        driver.of_thread.context = context
        return 0

    def query(handle):
        assert driver.context == 9
        return driver.answer(handle)

    kept = [_QUERY(f) for f in (query, query, get_context, set_context)]
    stream, event, *others = (ctypes.cast(f, ctypes.c_void_p).value for f in kept)
    return QueryCalls(stream, event, (*others, 9)), kept


class Gpu(SimpleNamespace):
    """Waits for a device that is not there."""

    def check(self):
        if self.broken_by:
            raise DeviceError("it failed before")

    def give_up(self, why):
        self.broken_by = why

    def event(self, handle, stream):
        return RecordedEvent(SimpleNamespace(ptr=handle), stream)


@pytest.fixture(params=["python", "compiled"])
def way(request, monkeypatch):
    """Who asks: the interpreter, or the compiled loops."""
    monkeypatch.setattr(waiting, "_loops", [])
    if request.param == "compiled":
        pytest.importorskip("numba", reason="the compiled loops need numba")
        from gpushard.fused.code.loading import load

        waiting.poll_by(load().poll)
    return request.param


@pytest.fixture
def gpu(way):
    driver = Driver()
    calls, kept = by_address(driver) if way == "compiled" else (QueryCalls(), None)
    gpu = Gpu(driver=driver, kept=kept, broken_by="")
    gpu.waits = Waits(driver, calls, "cuda:7", gpu.check, gpu.give_up)
    return gpu


def in_s(seconds):
    return time.monotonic() + seconds


def seconds_of(call):
    began = time.monotonic()
    call()
    return time.monotonic() - began


def test_waits_ask_until_something_is_done(gpu):
    gpu.driver.of |= {STREAM: in_s(0.15), EVENT: in_s(0.3)}
    assert 0.1 < seconds_of(lambda: gpu.waits.wait_for(STREAM)) < 0.29
    assert seconds_of(lambda: gpu.waits.wait(gpu.event(EVENT, STREAM))) > 0.1
    assert gpu.driver.context == 5


def test_what_is_done_is_asked_once(gpu):
    gpu.waits.wait_for(STREAM)
    assert gpu.driver.n_asked == 1


def test_a_wait_sleeps_and_does_not_spin(gpu):
    gpu.driver.of[STREAM] = in_s(0.6)
    began = time.thread_time()
    gpu.waits.wait_for(STREAM)
    assert time.thread_time() - began < 0.3
    # Of sleeps that grow to 0.2 ms; a system may make them longer, but not shorter.
    assert 10 < gpu.driver.n_asked < 4000


def test_an_error_of_the_driver_is_raised(gpu):
    gpu.driver.of[STREAM] = 700
    with pytest.raises(RefusedError, match="700"):
        gpu.waits.wait_for(STREAM)
    assert not gpu.broken_by


def test_a_wait_ends_with_its_limit_and_gives_the_device_up(gpu):
    gpu.driver.of[STREAM] = NOT_READY
    gpu.waits.limit(STREAM, 0.3, ())
    began = time.monotonic()
    with pytest.raises(DeviceError) as raised:
        gpu.waits.wait_for(STREAM)
    assert 0.2 < time.monotonic() - began < 5
    assert raised.value.what == (
        "cuda:7 has not ended for 0.3 seconds what it was given, as a damaged stream "
        "may keep its decoder busy for ever"
    )
    for way_out in ("new process", "placement='host'", "crc32c", "device_patience_s"):
        assert way_out in raised.value.hint
    assert gpu.broken_by == "work that had not ended after 0.3 seconds"


def test_events_of_a_stream_have_its_limit(gpu):
    gpu.driver.of[EVENT] = NOT_READY
    gpu.waits.limit(STREAM, 0.1, ())
    with pytest.raises(DeviceError, match="not ended"):
        gpu.waits.wait(gpu.event(EVENT, STREAM))


def test_streams_that_were_released_and_others_have_no_limit(gpu):
    gpu.waits.limit(STREAM, 0.1, ())
    gpu.driver.of[OTHER] = in_s(0.4)
    gpu.waits.wait_for(OTHER)
    gpu.waits.forget(STREAM)
    gpu.driver.of[STREAM] = in_s(0.4)
    gpu.waits.wait_for(STREAM)
    assert not gpu.broken_by


def test_what_the_caller_had_queued_before_does_not_count(gpu):
    gpu.waits.limit(STREAM, 0.3, [gpu.event(ENTRY, 0)])
    gpu.driver.of |= {ENTRY: in_s(0.6), STREAM: in_s(0.7)}
    gpu.waits.wait_for(STREAM)
    assert not gpu.broken_by
    gpu.driver.of[STREAM] = NOT_READY
    with pytest.raises(DeviceError, match="not ended"):
        gpu.waits.wait_for(STREAM)


def test_each_wait_has_the_time_anew(gpu):
    gpu.waits.limit(STREAM, 0.4, ())
    for _ in range(3):
        gpu.driver.of[STREAM] = in_s(0.2)
        gpu.waits.wait_for(STREAM)
    assert not gpu.broken_by


def test_waits_of_other_threads_and_later_ones_end(gpu):
    gpu.driver.of |= {STREAM: NOT_READY, OTHER: NOT_READY}
    gpu.waits.limit(STREAM, 0.2, ())
    ended = []

    def wait():
        with pytest.raises(DeviceError, match="before"):
            gpu.waits.wait_for(OTHER)  # without a limit
        ended.append(1)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    with pytest.raises(DeviceError, match="not ended"):
        gpu.waits.wait_for(STREAM)
    thread.join(5)
    assert ended
    with pytest.raises(DeviceError, match="before"):
        gpu.waits.wait_for(STREAM)


def test_an_interrupt_ends_a_wait(way):
    """Without Python's functions in the loops, in which it would be heard, too."""
    libc = ctypes.CDLL(None)
    names = "abs", "abs", "sched_yield", "sched_yield"
    stream, event, *others = (
        ctypes.cast(libc[name], ctypes.c_void_p).value for name in names
    )
    calls = QueryCalls(stream, event, (*others, 9))
    driver = SimpleNamespace(streamQuery=abs)
    waits = Waits(driver, calls, "cuda:7", lambda: None, print)
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:  # in the background it is ignored
        timer.start()
        began = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            waits.wait_for(NOT_READY)  # which is the absolute value of itself
        assert time.monotonic() - began < 5
        timer.join()
    finally:
        signal.signal(signal.SIGINT, before)


def test_the_time_goes_on_after_an_interrupt(gpu, monkeypatch):
    gpu.driver.of[STREAM] = NOT_READY
    gpu.waits.limit(STREAM, 0.5, ())
    interrupts = [KeyboardInterrupt, None, None]

    def interrupted():
        if len(interrupts) > 1 and time.monotonic() > began + 0.35:
            raise interrupts.pop(0)

    began = time.monotonic()
    monkeypatch.setattr(gpu.waits, "_check", interrupted)
    with pytest.raises(KeyboardInterrupt):
        gpu.waits.wait_for(STREAM)
    del interrupts[1:]
    with pytest.raises(DeviceError, match="not ended"):
        gpu.waits.wait_for(STREAM)
    assert time.monotonic() - began < 0.8


def test_a_long_wait_without_a_limit_is_told_of_once(gpu, monkeypatch, caplog):
    monkeypatch.setattr(waiting, "_LONG_S", 0.2)
    for _ in range(2):
        gpu.driver.of[STREAM] = in_s(0.5)
        gpu.waits.wait_for(STREAM)
    (message,) = caplog.messages
    assert message.startswith("cuda:7 has not ended for 0 seconds")


def test_waits_that_end_are_not_told_of(gpu, monkeypatch, caplog):
    monkeypatch.setattr(waiting, "_LONG_S", 5.0)
    gpu.driver.of[STREAM] = in_s(0.3)
    gpu.waits.wait_for(STREAM)
    assert caplog.messages == []


def test_waits_in_the_driver_can_be_had_for_comparison(gpu, monkeypatch):
    monkeypatch.setattr(waiting, "POLLS", False)
    gpu.waits.wait_for(STREAM)
    assert gpu.driver.is_synchronized
    assert not gpu.driver.n_asked


def test_a_call_that_hangs_with_the_work_is_left_alone(gpu):
    gpu.driver.of[STREAM] = NOT_READY
    gpu.waits.limit(STREAM, 0.3, ())
    goes_on = threading.Event()
    try:
        with pytest.raises(DeviceError, match="not ended"):
            gpu.waits.beside(goes_on.wait)
    finally:
        goes_on.set()
    assert gpu.broken_by


@pytest.mark.parametrize("is_busy", [False, True])
def test_a_call_is_made_by_the_thread_unless_work_is_under_way(gpu, is_busy):
    gpu.driver.of[STREAM] = NOT_READY if is_busy else 0
    gpu.waits.limit(STREAM, 5, ())
    made_by = gpu.waits.beside(threading.get_ident)
    assert (made_by == threading.get_ident()) != is_busy
    with pytest.raises(ZeroDivisionError):
        gpu.waits.beside(lambda: 1 // 0)


def test_work_of_the_caller_does_not_count_for_a_call(gpu):
    gpu.waits.limit(STREAM, 0.2, [gpu.event(ENTRY, 0)])
    gpu.driver.of |= {ENTRY: in_s(0.5), STREAM: NOT_READY}
    assert gpu.waits.beside(lambda: time.sleep(0.4) or "made") == "made"
    assert not gpu.broken_by
