"""Small reads have kept loops loaded, and never wait for any to be compiled."""

from __future__ import annotations

import errno

import pytest
import zarr

import gpushard
from fused_cases import VALUES, ZSTD, stored
from gpushard import Options
from gpushard.fused import choice
from held_alone import held_by_another_thread
from zarr_oracle import assert_same_bits, held

pytest.importorskip("numba", reason="the compiled loops need numba (extra `fast`)")

INSIDE = (slice(35, 60), slice(20, 31))  # of one inner chunk of `VALUES`
N_READS = 64  # as `Options.compile_nbytes` says of its default


@pytest.fixture(autouse=True)
def asked(monkeypatch):
    """Loops that another process compiled; how often a process looked for them."""
    loops, found = choice._load(), []
    monkeypatch.setattr(choice, "_loaded", [])
    monkeypatch.setattr(choice, "_counts", choice._ReadCounts())
    monkeypatch.setattr(choice, "_ready_loops", lambda: found.append(loops) or loops)
    monkeypatch.setattr(choice, "_compiled_loops", lambda: pytest.fail("compiled"))
    monkeypatch.setattr(choice._compiler, "run_once", lambda: pytest.fail("compiled"))
    return found


@pytest.fixture
def place(tmp_path):
    return stored([ZSTD]).placed("local", tmp_path)


def read(place, n: int, **options) -> None:
    a = gpushard.open_array(place, options=Options(**options), device="cpu")
    for _ in range(n):
        assert_same_bits(a[INSIDE], VALUES[INSIDE])


def test_after_some_tens_of_small_reads_kept_loops_are_loaded(place):
    read(place, N_READS - 1)
    assert not choice.are_loaded()
    read(place, 1)
    assert choice.are_loaded()


def test_small_reads_and_others_count_together(place):
    choice._counts.all_nbytes = (1 << 20) - 1
    read(place, 1)
    assert choice.are_loaded()


def test_the_option_says_after_how_many_small_reads(place):
    read(place, 9, compile_nbytes=10 << 20)
    assert not choice.are_loaded()
    read(place, 1, compile_nbytes=10 << 20)
    assert choice.are_loaded()


@pytest.mark.parametrize("nbytes", [0, 64 << 20])
def test_small_reads_have_nothing_compiled(nbytes, place, asked, monkeypatch):
    monkeypatch.setattr(choice, "_ready_loops", lambda: asked.append(None))
    read(place, 70, compile_nbytes=nbytes)
    assert not choice.are_loaded()
    assert len(asked) == 1  # looking for them takes as long as hundreds of reads


def test_small_reads_do_not_wait_for_a_thread_that_compiles(place, asked, monkeypatch):
    with held_by_another_thread(choice._turn.alone):
        read(place, N_READS)
    assert not asked
    read(place, 1)
    assert choice.are_loaded()


def test_reads_that_the_loops_cannot_do_do_not_count(asked):
    read(held(stored([ZSTD]).objects), N_READS)
    assert not asked
    assert not choice.are_loaded()


def test_larger_reads_have_nothing_compiled_because_of_small_ones(place, monkeypatch):
    monkeypatch.setattr(choice, "_ready_loops", lambda: None)
    choice._counts.all_nbytes = 1 << 40
    options = Options(compile_nbytes=10 << 20, small_read_chunks=0)
    a = gpushard.open_array(place, options=options, device="cpu")
    assert_same_bits(a[...], VALUES)
    assert choice._counts.nbytes


def test_many_tiny_inner_chunks_have_the_loops_loaded(tmp_path):
    """Each costs Python as much as a large one."""
    zarr.create_array(tmp_path / "a", shape=(4000,), chunks=(1,), dtype="u1")
    a = gpushard.open_array(tmp_path / "a", device="cpu")
    a[:2000]
    assert not choice.are_loaded()
    a[2000:2100]
    assert choice.are_loaded()


@pytest.mark.parametrize("lacking", ["_ready_loops", "find_library"])
def test_reads_do_without_loops_that_no_descriptor_is_left_for(
    lacking, place, monkeypatch
):
    """To import is to open files; what reads need may be open already."""

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(choice, lacking, fail)
        read(place, N_READS)
        read(place, 1, small_read_chunks=0)
        read(place, 1, small_read_chunks=0, compile_nbytes=1)
    assert not choice.are_loaded() or lacking == "find_library"
    read(place, 1, small_read_chunks=0)
    assert choice.are_loaded()


def test_what_else_the_system_refuses_an_import_is_raised(place, monkeypatch):
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(choice, "find_library", fail)
    with pytest.raises(OSError, match="Input/output error"):
        read(place, 1, small_read_chunks=0, compile_nbytes=1)
