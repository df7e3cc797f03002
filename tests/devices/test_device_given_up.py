"""What a GPU that was given up may still use is kept, and the process ends."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest

from gpushard.devices import endless
from gpushard.devices.endless import Endless, PooledBuffer
from gpushard.devices.pinned import PinnedPieces

END_PAST_THE_DRIVER = endless.end_past_the_driver


@pytest.fixture(autouse=True)
def kept(monkeypatch):
    """What is kept for the life of the process, which is that of a test here."""
    monkeypatch.setattr(endless, "end_past_the_driver", lambda: None)
    monkeypatch.setattr(endless, "_kept", [])
    return endless._kept


class Pooled:
    """Memory that says when it goes."""

    def __init__(self, gone):
        self.ptr, self.gone = 512, gone

    def __del__(self):
        self.gone.append(self)


@pytest.mark.parametrize("is_under_way", [False, True])
def test_memory_is_kept_from_when_the_device_was_given_up(is_under_way, kept):
    gone, held = [], Endless()
    memory = PooledBuffer(Pooled(gone), 100, held)
    room = bytearray(64)
    pieces = PinnedPieces(lambda _: room, held)
    array = pieces.make(50)
    assert (memory.address, memory.nbytes, array.nbytes) == (512, 100, 50)
    if is_under_way:
        held.begin(held)
    part = array[3:9]
    del memory, array
    assert (room,) not in kept  # a part of it is used
    del part
    assert bool(gone) != is_under_way
    assert ((room,) in kept) == is_under_way
    assert (pieces.take(50) is None) == is_under_way


ENDS = """
import ctypes, sys
libc = ctypes.CDLL(None)
pause = ctypes.cast(libc.pause, ctypes.c_void_p)
libc.on_exit.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
libc.on_exit(pause, None)  # as the driver does
from gpushard.devices.endless import Endless
held = Endless()

class Module:
    def __del__(self, pause=libc.pause):
        pause()  # as the driver does when a kernel is given back

modules = [Module()]
if IS_UNDER_WAY:
    held.begin(modules)
    held.begin(modules)
    held.keep(Module())
import atexit
atexit.register(print, "at exit")
print("said")
sys.exit(STATUS)
"""


def ended(status, *, is_under_way=True, wait_s=30):
    script = ENDS.replace("STATUS", status).replace("IS_UNDER_WAY", str(is_under_way))
    command = [sys.executable, "-c", script]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=wait_s, check=False
    )


@pytest.mark.skipif(sys.platform != "linux", reason="the C library has no on_exit")
@pytest.mark.parametrize("status", ["0", "1", "7", "'why'"])
def test_a_process_ends_with_its_status_before_what_the_driver_does(status):
    """What is printed to a pipe is in a buffer until the interpreter ends."""
    done = ended(status)
    assert done.returncode == (1 if status == "'why'" else int(status))
    assert done.stdout == "said\nat exit\n"
    assert done.stderr == ("why\n" if status == "'why'" else "")


@pytest.mark.skipif(sys.platform != "linux", reason="the C library has no on_exit")
def test_a_process_whose_device_works_ends_as_always():
    with pytest.raises(subprocess.TimeoutExpired) as raised:
        ended("0", is_under_way=False, wait_s=5)
    assert raised.value.stdout == b"said\nat exit\n"


def test_a_c_library_without_on_exit_is_left_alone(monkeypatch):
    asked = []

    def load(name):
        asked.append(name)
        return SimpleNamespace()

    monkeypatch.setattr(endless.ctypes, "CDLL", load)
    END_PAST_THE_DRIVER.__wrapped__()
    assert asked == [None]
