"""A loader in PyTorch: tensors, its `DataLoader`s, its process groups, its training."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import gpushard
from gpushard import Loader, Mix
from loader_data import IMAGES, LABELS, N, images, labels, stored
from places import DIGITS

torch = pytest.importorskip("torch", reason="PyTorch is not installed in this lane")
from torch.utils.data import DataLoader  # noqa: E402 - only where torch is


def loader(**options):
    arrays = {"x": images(), "y": labels()}
    return Loader(arrays, **{"batch_size": 8, "shuffle": True, "seed": 5} | options)


def test_batches_are_tensors_in_the_same_memory():
    for batch in loader(to="torch", return_index=True):
        assert isinstance(batch["x"], torch.Tensor)
        assert np.array_equal(batch["x"].numpy(), IMAGES[batch["index"]])
        assert np.array_equal(batch["y"].numpy(), LABELS[batch["index"]])
    shared = []
    wrapped = Loader(images(), to="torch", transform=lambda t: shared.append(t) or t)
    assert [t.data_ptr() for t in wrapped] == [t.data_ptr() for t in shared]


def test_tensors_keep_their_memory():
    kept = [
        (batch["x"][1:], batch["index"][1:])
        for batch in loader(to="torch", return_index=True)
    ]
    for tensor, index in kept:
        assert np.array_equal(tensor.numpy(), IMAGES[index])


@pytest.mark.filterwarnings("ignore:.*Zarr V3 specification")
def test_elements_that_torch_has_not_are_refused_when_the_loader_is_made():
    words = stored(np.array(["a", "b"], "U1"), (2,))
    with pytest.raises(gpushard.UnsupportedError, match="<U1"):
        Loader(words, to="torch")
    with pytest.raises(gpushard.UnsupportedError, match=">f4"):
        Loader(images(), to="torch", dtype=">f4")


def test_half_precision_of_the_other_kind_becomes_tensors():
    options = {"scale": 0.5, "batch_size": N}
    expected = torch.from_numpy(LABELS * np.float32(0.5)).to(torch.bfloat16)
    for dtype in (torch.bfloat16, "bfloat16"):
        (batch,) = Loader(labels(), to="torch", dtype=dtype, **options)
        assert batch.dtype == torch.bfloat16
        assert torch.equal(batch, expected)


@pytest.mark.parametrize("name", ["half", "float", "bool", "long", "float8_e5m2"])
def test_data_types_of_torch_are_those_of_numpy(name):
    wanted = getattr(torch, name)
    (batch,) = Loader(labels(), to="torch", dtype=wanted, batch_size=N)
    assert batch.dtype == wanted
    with pytest.raises(gpushard.OptionError, match=r"got torch\.qint8"):
        Loader(labels(), dtype=torch.qint8)


def test_epochs_of_a_worker_are_those_that_set_epoch_says():
    whole = loader()
    expected = [all_of(whole), all_of(whole)]
    given = DataLoader(loader(), batch_size=None, num_workers=1)
    epochs = []
    for epoch in range(2):
        given.dataset.set_epoch(epoch)
        epochs.append(all_of(given))
    assert epochs == expected


def all_of(batches):
    return [{k: np.asarray(v).tolist() for k, v in batch.items()} for batch in batches]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_data_loader_hands_batches_on(num_workers):
    options = {"batch_size": None, "num_workers": num_workers}
    given = DataLoader(loader(), **options)
    assert len(given) == -(-N // 8)
    first = next(iter(given))
    assert isinstance(first["x"], torch.Tensor)
    assert all_of(given) == all_of(loader())


def test_several_workers_are_refused():
    given = DataLoader(loader(), batch_size=None, num_workers=2)
    with pytest.raises(gpushard.UnsupportedError, match="num_workers=2"):
        list(given)


def mixed(**options):
    return Mix([loader(**options), loader(seed=6, **options)], stop="all", seed=2)


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # by torchdata itself
@pytest.mark.parametrize("made", [loader, mixed])
def test_a_stateful_data_loader_resumes(made):
    name = "torchdata.stateful_dataloader"
    stateful = pytest.importorskip(name, reason="torchdata is not installed")
    first = stateful.StatefulDataLoader(made(), batch_size=None)
    batches = iter(first)
    begun = [next(batches) for _ in range(4)]
    state = first.state_dict()
    rest = all_of(batches)
    assert len(begun) + len(rest) == len(made())
    second = stateful.StatefulDataLoader(made(), batch_size=None)
    second.load_state_dict(state)
    assert all_of(second) == rest
    # The epoch after it is another one, as without the interruption.
    assert all_of(second) == all_of(first)


def test_a_loop_that_trains_and_validates_gets_every_epoch_whole():
    """As Lightning's: a look at validation first, and validation within an epoch."""
    training = DataLoader(loader(), batch_size=None)
    validation = DataLoader(loader(shuffle=False, seed=0), batch_size=None)
    for _, _ in zip(range(2), validation, strict=False):
        pass
    epochs = []
    for _ in range(2):
        training.dataset.set_epoch(len(epochs))
        batches = []
        for step, batch in enumerate(training):
            batches.append(batch)
            if step in (3, 9):
                assert len(all_of(validation)) == len(validation)
        epochs.append(all_of(batches))
    plain = loader()
    assert epochs == [all_of(plain), all_of(plain)]


GLOO = """
import json, os, sys
import torch.distributed as dist
import gpushard
dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}",
                        rank=int(sys.argv[3]), world_size=int(sys.argv[4]))
images = gpushard.open_array(sys.argv[1] + "/images")
told = []
for uneven in ("allow", "drop"):
    loader = gpushard.Loader(images, batch_size=96, shuffle=True, block="chunk",
                             uneven=uneven, return_index=True)
    told.append([len(loader), [index.tolist() for _, index in loader]])
dist.barrier()
dist.destroy_process_group()
print(json.dumps(told))
"""


def test_processes_of_a_group_share_an_epoch(tmp_path):
    world_size = 3  # no divisor of the number of samples
    environment = {
        k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")
    }
    runs = [
        subprocess.Popen(
            [
                sys.executable,
                "-c",
                textwrap.dedent(GLOO),
                *(str(DIGITS), str(tmp_path / "rendezvous"), str(rank)),
                str(world_size),
            ],
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )
        for rank in range(world_size)
    ]
    told = [json.loads(run.communicate(timeout=120)[0]) for run in runs]
    assert all(run.returncode == 0 for run in runs)
    allowed, dropped = zip(*told, strict=True)
    assert len({n for n, _ in dropped}) == 1
    for of_ranks, n_samples in ((allowed, 10_000), (dropped, 9_999)):
        assert all(n == len(steps) for n, steps in of_ranks)
        seen = [i for _, steps in of_ranks for step in steps for i in step]
        assert len(seen) == len(set(seen)) == n_samples


UNFINISHED = """
import sys
import torch
import gpushard
loader = gpushard.Loader(gpushard.open_array(sys.argv[1], device="cpu"), batch_size=4)
begun = iter(torch.utils.data.DataLoader(loader, batch_size=None))
next(begun)
"""


def test_a_program_that_ends_during_an_epoch_ends_quietly():
    # torch keeps modules alive, so the iteration is dropped after what they refer to.
    run = subprocess.run(
        [sys.executable, "-c", UNFINISHED, str(DIGITS / "images")],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (run.returncode, run.stderr) == (0, "")


IN_TORCH = """
import sys
import torch
import gpushard
kernel = torch.randn(1, 1, 5, 5)
def blurred(batch):
    images = batch.float()[:, None]
    for _ in range(50):
        images = torch.nn.functional.conv2d(images, kernel, padding=2)
    return images
images = gpushard.open_array(sys.argv[1], device="cpu")
for batch in gpushard.Loader(images, batch_size=50, to="torch", transform=blurred):
    break
"""


def test_a_program_may_end_while_torch_transforms_a_batch():
    # torch aborts the process if the interpreter ends a thread that it works in.
    run = subprocess.run(
        [sys.executable, "-c", IN_TORCH, str(DIGITS / "images")],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (run.returncode, run.stderr) == (0, "")
