"""What each rank gets of an epoch: nothing twice, and as many steps as the others."""

from __future__ import annotations

import importlib
import os
import pickle
import subprocess
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushard import Loader
from gpushard.errors import OptionError
from gpushard.layout import GridAxis
from gpushard.loader.order import Shuffling
from gpushard.loader.ranks import Ranks, find_ranks
from gpushard.loader.sample_grid import SampleGrid
from gpushard.loader.shares import Share
from gpushard.loader.sizes import load_end
from loader_data import N, labels

sizes = {
    "n": st.integers(0, 300),
    "batch_size": st.integers(1, 20),
    "world_size": st.integers(1, 7),
}
ways = st.sampled_from(["drop", "pad", "allow"])

BESIDE_AN_IMPORT = """
import importlib, sys, threading
import gpushard
from loader_data import labels

sys.is_importing = threading.Event()
thread = threading.Thread(target=importlib.import_module, args=["torch.utils.data"])
array = labels()
thread.start()
assert sys.is_importing.wait(20)
gpushard.Loader(array)
assert sys.modules["torch.utils.data"].IterableDataset.kinds
thread.join()
"""


def shares(n, batch_size, world_size, uneven, drop_last=False):
    return [
        Share.cut(n, batch_size, (rank, world_size), uneven, drop_last=drop_last)
        for rank in range(world_size)
    ]


def positions(share):
    return share.positions(0, share.n_turns)


@given(**sizes, uneven=ways, drop_last=st.booleans())
def test_no_position_is_lost_or_doubled_beyond_what_uneven_says(
    n, batch_size, world_size, uneven, drop_last
):
    ranks = shares(n, batch_size, world_size, uneven, drop_last)
    counts = np.bincount(np.concatenate([positions(s) for s in ranks]), minlength=n)
    n_lost, n_doubled = np.count_nonzero(counts == 0), counts[counts > 1].sum()
    global_batch = batch_size * world_size
    if uneven != "pad" or n % global_batch == 0:
        assert n_doubled == 0
    else:
        assert counts.sum() - n < world_size
    if drop_last:
        assert n_lost < global_batch
    elif uneven == "drop":
        assert n_lost < world_size
    else:
        assert n_lost == 0


@pytest.mark.parametrize(
    ("uneven", "n_last"), [("drop", [0, 0]), ("pad", [4, 4]), ("allow", [4, 0])]
)
def test_a_last_batch_that_is_full_is_kept(uneven, n_last):
    ranks = shares(15, 4, 2, uneven, drop_last=True)  # 7 are left after a step
    assert [share.n_last for share in ranks] == n_last


@given(**sizes, uneven=ways, drop_last=st.booleans())
def test_every_rank_has_as_many_steps(n, batch_size, world_size, uneven, drop_last):
    ranks = shares(n, batch_size, world_size, uneven, drop_last)
    steps = {s.n_steps for s in ranks}
    assert len(steps) == 1 or (uneven == "allow" and max(steps) - min(steps) == 1)
    if uneven != "allow":
        assert len({s.n_turns for s in ranks}) == 1
    if drop_last:
        assert all(s.n_turns % batch_size == 0 for s in ranks)


@given(**sizes, uneven=ways)
def test_full_steps_of_all_ranks_are_the_global_batches(
    n, batch_size, world_size, uneven
):
    ranks = shares(n, batch_size, world_size, uneven)
    global_batch = batch_size * world_size
    for step in range(n // global_batch):
        together = np.concatenate([s.positions(*s.turns(step)) for s in ranks])
        first = step * global_batch
        assert together.tolist() == list(range(first, first + global_batch))


@given(**sizes, uneven=ways, position=st.integers(0, 320))
def test_turns_before_a_position_are_counted(
    n, batch_size, world_size, uneven, position
):
    ranks = shares(n, batch_size, world_size, uneven)
    counts, n_handed = [0] * world_size, 0
    for step in range(max(share.n_steps for share in ranks)):
        for rank, share in enumerate(ranks):
            reached = share.positions(*share.turns(step))
            # Step by step and rank by rank the epoch is in order; what is handed out
            # after its end starts over, and comes before no position.
            is_of_epoch = n_handed + np.arange(reached.size) < n
            counts[rank] += np.count_nonzero((reached < position) & is_of_epoch)
            n_handed += reached.size
    for share, n_before in zip(ranks, counts, strict=True):
        assert share.n_before(position) == (
            share.n_turns if position >= n else n_before
        )


def test_what_pads_an_epoch_is_its_beginning():
    shares = [Share.cut(10, 4, (rank, 3), "pad") for rank in range(3)]
    positions = [share.positions(*share.turns(0)).tolist() for share in shares]
    assert positions == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 0, 1]]


def test_one_process_gets_everything_whatever_uneven_says():
    for uneven in ("drop", "pad", "allow"):
        (share,) = shares(10, 4, 1, uneven)
        assert positions(share).tolist() == list(range(10))
        assert [share.turns(k) for k in range(3)] == [(0, 4), (4, 8), (8, 10)]


@given(**sizes, uneven=ways, n_wanted=st.integers(1, 60), block=st.integers(1, 40))
def test_loads_follow_one_another_and_end_between_groups(
    n, batch_size, world_size, uneven, n_wanted, block
):
    shuffling = Shuffling(
        grid=SampleGrid((GridAxis(n, block),)), shuffle=True, buffer_blocks=2
    )
    order = shuffling.order(0)
    for share in shares(n, batch_size, world_size, uneven):
        start = 0
        while start < share.n_turns:
            stop = load_end(order, share, start, n_wanted, n_wanted)
            assert start < stop <= share.n_turns
            assert stop >= min(start + n_wanted, share.n_turns)
            if stop < share.n_turns:
                before, after = share.positions(stop - 1, stop + 1).tolist()
                if after > before:
                    assert order.cut(before + 1, n) <= after
            start = stop


def test_rank_is_taken_from_the_arguments_first(monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert find_ranks(2, 5) == (2, 5)
    assert find_ranks(None, None) == (1, 3)


def test_a_single_process_is_all_there_is(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    assert find_ranks(None, None) == (0, 1)


def test_a_process_group_is_asked_before_the_launcher_and_jax_after_it(monkeypatch):
    def group(rank, size, *, is_there):
        return SimpleNamespace(
            is_available=lambda: True,
            is_initialized=lambda: is_there,
            get_rank=lambda: rank,
            get_world_size=lambda: size,
        )

    jax = SimpleNamespace(
        distributed=SimpleNamespace(is_initialized=lambda: True),
        process_index=lambda: 4,
        process_count=lambda: 8,
    )
    monkeypatch.setitem(sys.modules, "jax", jax)
    monkeypatch.setitem(sys.modules, "torch.distributed", group(5, 6, is_there=False))
    monkeypatch.delenv("RANK", raising=False)
    assert find_ranks(None, None) == (4, 8)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert find_ranks(None, None) == (1, 3)
    monkeypatch.setitem(sys.modules, "torch.distributed", group(5, 6, is_there=True))
    assert find_ranks(None, None) == (5, 6)


@pytest.mark.parametrize("named", ["torch.distributed", "jax"])
def test_a_library_that_another_thread_is_importing_knows_no_ranks(monkeypatch, named):
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setitem(sys.modules, named, ModuleType(named))
    assert find_ranks(None, None) == (0, 1)


def test_a_loader_made_while_another_thread_imports_torch_waits_for_it(tmp_path):
    """`DataLoader` would index a loader that it was not told of."""
    package = tmp_path / "torch" / "utils"
    package.mkdir(parents=True)
    for directory in (package, package.parent):
        (directory / "__init__.py").touch()
    (package / "data.py").write_text(
        "import sys, time\n"
        "sys.is_importing.set()\n"
        "time.sleep(0.05)\n"
        "class IterableDataset:\n"
        "    kinds = []\n"
        "    register = kinds.append\n"
    )
    paths = os.pathsep.join([str(tmp_path), *sys.path])
    subprocess.run(
        [sys.executable, "-c", BESIDE_AN_IMPORT],
        env={**os.environ, "PYTHONPATH": paths},
        check=True,
        timeout=60,
    )


def test_a_loader_is_made_although_torch_cannot_be_imported(monkeypatch):
    name = "torch.utils.data"
    monkeypatch.setitem(sys.modules, name, None)
    assert len(Loader(labels(), batch_size=N)) == 1

    def fails(name):
        raise OSError("another thread found no libtorch.so")

    monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setattr(importlib, "import_module", fails)
    assert len(Loader(labels(), batch_size=N)) == 1


@pytest.mark.parametrize("given", [(0, None), (None, 2), (2, 2), (-1, 2)])
def test_ranks_that_make_no_sense_are_refused(given):
    with pytest.raises(OptionError, match="rank"):
        find_ranks(*given)


def test_a_launcher_that_says_nonsense_is_named(monkeypatch):
    monkeypatch.setenv("RANK", "first")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(OptionError, match="RANK"):
        find_ranks(None, None)


def test_a_loader_made_before_the_process_group_is_refused(monkeypatch):
    """As Lightning's scripts make it: each rank would get all samples."""
    monkeypatch.delitem(sys.modules, "torch.distributed", raising=False)
    monkeypatch.delenv("RANK", raising=False)
    early, told = Loader(labels()), Loader(labels(), rank=0, world_size=1)
    assert len(list(early)) == N
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    for loader in (early, pickle.loads(pickle.dumps(early))):
        with pytest.raises(OptionError, match="rank 1 of 2, got rank 0 of 1"):
            next(iter(loader))
    assert len(list(told)) == len(list(pickle.loads(pickle.dumps(told)))) == N
    late = Loader(labels())
    assert len(list(late)) == N // 2
    monkeypatch.delenv("RANK")  # the group is gone: what was found stays
    assert len(list(late)) == len(list(pickle.loads(pickle.dumps(late)))) == N // 2


def test_loads_of_all_ranks_end_with_the_inner_chunks_that_they_share():
    grid = SampleGrid((GridAxis(20, 4), GridAxis(1000, 100)))
    order = Shuffling(grid=grid).order(0)
    alone, of_four = (Share.cut(grid.n, 10, Ranks(0, n)) for n in (1, 4))
    # Along axis 0 inner chunks have 4,000 samples, four times what a load may have.
    assert load_end(order, alone, 0, 310, 300) == 400
    assert load_end(order, of_four, 0, 310, 300) == 1000
