"""The training whose steps must not wait, over the emulated device and a still net."""

from __future__ import annotations

import sys
import time
from itertools import repeat

import numpy as np
import pytest
import zarr

from benchmarks.gpu import images, ratios, trainer, training, training_peers
from benchmarks.gpu.run import Run, Skipped
from benchmarks.gpu.sizes import FULL, TINY
from gpushard.loader import reading

DEVICE = "cuda_host.machine:emulated"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return Run(DEVICE, "tiny", tmp_path_factory.mktemp("images"))


class Still:
    """A net of which a step takes `step_s`, on a device that is the host."""

    def __init__(self, step_s=0.0):
        self.step_s = step_s
        self.labels = []

    def step(self, batch):
        self.labels.append(batch["y"])
        time.sleep(self.step_s)

    def mark(self):
        return time.perf_counter()

    def seconds(self, first, last):
        return last - first

    def wait(self):
        pass


class Clock:
    """Time that passes only where somebody sleeps, whatever else the machine does."""

    def __init__(self):
        self.now_s = 0.0

    def sleep(self, seconds):
        self.now_s += seconds

    def perf_counter(self):
        return self.now_s


@pytest.fixture
def clock(monkeypatch):
    """Time of the trainer and of this module."""
    clock = Clock()
    monkeypatch.setattr(trainer, "perf_counter", clock.perf_counter)
    monkeypatch.setattr(sys.modules[__name__], "time", clock)
    return clock


def slowly(batches, wait_s):
    for batch in batches:
        time.sleep(wait_s)
        yield batch


def test_images_are_the_same_each_time_and_can_be_told_apart():
    values, labels = images.made(300)
    again = images.made(300)
    assert np.array_equal(values, again[0])
    assert np.array_equal(labels, again[1])
    assert values.shape == (300, images.SIDE, images.SIDE)
    seen = (values > 0).astype("f4").reshape(300, -1)
    classes = range(images.N_CLASSES)
    means = np.stack([seen[:200][labels[:200] == c].mean(axis=0) for c in classes])
    nearest = np.square(seen[200:, None] - means).sum(axis=2).argmin(axis=1)
    assert np.mean(nearest == labels[200:]) > 0.9


def test_digits_are_those_of_mnist_at_twice_the_size():
    values, labels = images.scaled_digits(10_050)
    group = zarr.open_group(str(images.DIGITS), mode="r")
    assert np.array_equal(labels[:10_000], group["labels"][...])
    assert np.array_equal(labels[10_000:], labels[:50])
    assert values.shape == (10_050, images.SIDE, images.SIDE)
    for n in (0, 9_999):
        digit = np.kron(group["images"][n], np.ones((2, 2), np.uint8))
        corners = np.argwhere(values[n])
        first, wanted = corners.min(axis=0), np.argwhere(digit).min(axis=0)
        y, x = first - wanted
        assert np.array_equal(values[n][y : y + 56, x : x + 56], digit)
        assert values[n].sum() == digit.sum()


def test_a_loader_gives_digits(run):
    with training.open_loader(run, "zstd", "chunk", "digits") as loader:
        y = np.concatenate([batch["y"].get() for batch in loader])
    labels = images.scaled_digits(TINY.n_distinct_images)[1]
    assert sorted(y) == sorted(np.concatenate([labels, labels]))


def test_an_array_is_all_its_images_of_which_shards_repeat(run):
    stored = images.store(TINY, "zstd", run.root)
    values, labels = images.made(TINY.n_distinct_images)
    for path, made in zip(stored, (values, labels), strict=True):
        found = zarr.open_array(str(path), mode="r")[...]
        assert np.array_equal(found, np.concatenate([made, made]))
    encoded = sum(p.stat().st_size for p in stored.images.rglob("c/0/0/0"))
    assert 1.5 < TINY.n_shard_images * images.SIDE**2 / encoded < 3
    assert images.store(TINY, "zstd", run.root) == stored


@pytest.mark.parametrize("sizes", [FULL, TINY])
def test_shards_and_batches_fit_the_images(sizes):
    assert sizes.n_images % sizes.n_distinct_images == 0
    assert sizes.n_distinct_images % sizes.n_shard_images == 0
    assert sizes.n_shard_images % sizes.n_inner_images == 0
    assert sizes.n_batch_images % sizes.n_inner_images == 0


@pytest.mark.parametrize("order", training.ORDERS)
def test_the_loader_of_a_training_gives_every_image_once(run, order):
    with training.open_loader(run, "zstd", order) as loader:
        batches = list(loader)
    assert [batch["y"].shape[0] for batch in batches] == [32] * 8
    values, labels = images.made(TINY.n_distinct_images)
    x = np.concatenate([batch["x"].get() for batch in batches])
    assert x.dtype == "f2"
    wanted = np.concatenate([values, values]).reshape(256, -1)
    number = (x.astype("f4") * 255).round().astype("u1").reshape(256, -1)
    assert sorted(map(bytes, number)) == sorted(map(bytes, wanted))
    y = np.concatenate([batch["y"].get() for batch in batches])
    by_image = dict(zip(map(bytes, wanted), labels, strict=False))
    assert all(by_image[bytes(v)] == c for v, c in zip(number, y, strict=True))


def test_steps_are_measured_with_the_loader_and_without(run):
    still = Still(0.002)
    with training.open_loader(run, "none", "chunk") as loader:
        found = training.measured(still, lambda: iter(loader), 0.1, 5.0)
    assert found["n_steps"] == 3 * 8
    assert found["ceiling"]["n_steps"] == 150
    assert found["wait_share"] < 1  # how large it is, the clock of the next tests says
    assert found["ceiling"]["step_seconds"] >= 0.002


def test_all_cases_have_a_name_of_their_own_and_leave_all_as_it_was():
    assert len(set(training.CASES)) == len(training.CASES)
    before = sys.getswitchinterval(), reading.LOAD_NBYTES
    for how in ("large", "switch"):
        with training.HOWS[how]():
            assert (sys.getswitchinterval(), reading.LOAD_NBYTES) != before
    assert (sys.getswitchinterval(), reading.LOAD_NBYTES) == before
    assert {how for *_, how in training.CASES} == set(training.HOWS)


def test_a_row_tells_where_inner_chunks_were_decoded(run):
    for placement, other in (("device", "host"), ("host", "device")):
        opened = training.open_loader(run, "zstd", "shard", placement)
        with opened as loader:
            n = sum(batch["y"].shape[0] for batch in loader)
            found = training._loading(loader)
        n_inner = n // TINY.n_inner_images
        assert found[f"n_decoded_on_{placement}"] == n_inner
        assert found[f"n_decoded_on_{other}"] == 0
        assert found["read_amplification"] == 1


@pytest.mark.usefixtures("clock")
def test_what_a_batch_is_waited_for_is_a_share_of_the_step():
    batch = {"y": np.zeros(4)}
    slow = trainer.train(Still(0.02), [lambda: slowly([batch] * 9, 0.01)], 9.0)
    quick = trainer.train(Still(0.02), [lambda: repeat(batch, 9)], 9.0)
    assert slow.n_steps == quick.n_steps == 9
    assert slow.host_wait_share == pytest.approx(1 / 3)
    assert slow.idle_share == pytest.approx(8 / (8 + 9 * 2))  # none before the first
    assert quick.idle_share == 0
    assert slow.first_wait_seconds == pytest.approx(0.01)
    shares = training.wait_shares(slow, quick)
    assert shares["wait_share"] == pytest.approx(1 / 3, rel=0.01)
    assert shares["inner_wait_share"] == pytest.approx(1 / 3, rel=0.01)


def test_a_training_ends_when_its_time_is_over():
    batch = {"y": np.zeros(4)}
    endless = repeat(lambda: repeat(batch))
    found = trainer.train(Still(0.001), endless, 0.05)
    assert 2 <= found.n_steps <= 50


def test_a_first_step_that_outlasts_the_warming_up_still_gives_a_row():
    batch = {"y": np.zeros(4)}
    first = iter([0.3])
    slow_first = Still()
    slow_first.step = lambda _: time.sleep(next(first, 0.001))
    found = training.measured(slow_first, lambda: iter([batch] * 20), 0.01, 0.2)
    assert found["n_steps"] >= 8
    assert found["slowest_step_seconds"] < 0.2


def test_a_training_takes_its_least_steps_though_its_time_is_over():
    batch = {"y": np.zeros(4)}
    epochs = [lambda: repeat(batch, 3)] * 9
    found = trainer.train(Still(0.002), epochs, 0.0, 5)
    assert found.n_steps == 5
    assert 0 < found.first_wait_seconds < 0.002


@pytest.mark.parametrize("n_epochs", [1, 2])
def test_steps_without_a_next_one_are_told_by_their_own_time(n_epochs):
    batch = {"y": np.zeros(4)}
    found = trainer.train(Still(0.01), [lambda: repeat(batch, 1)] * n_epochs, 9.0)
    assert found.n_steps == n_epochs
    assert found.step_seconds >= 0.01
    assert found.row()["mean_step_seconds"] >= 0.01


def test_an_epoch_without_a_batch_is_passed_over_and_a_training_of_them_refused():
    batch = {"y": np.zeros(4)}
    epochs = [lambda: iter(()), lambda: repeat(batch, 2)]
    assert trainer.train(Still(), epochs, 9.0).n_steps == 2
    with pytest.raises(ValueError, match="no epoch has a batch"):
        trainer.train(Still(), epochs[:1], 9.0)


def test_a_row_that_fails_does_not_keep_the_others_back(tmp_path):
    told = []
    run = Run(DEVICE, "tiny", tmp_path, frozenset({"done"}), told.append)
    still = Still()
    still.loss = 0.5

    def fails(_):
        raise OSError("gone")

    rows = {"done": fails, "bad": fails, "good": lambda _: {"n_steps": 1}}
    with pytest.raises(ExceptionGroup) as caught:
        training.put_rows(run, still, rows)
    assert told == [{"id": "good", "n_steps": 1, "loss": 0.5}]
    assert [error.__notes__ for error in caught.value.exceptions] == [["bad"]]


def test_without_a_gpu_it_is_said_why_nothing_was_trained(run):
    for task in (training.ours, training.peers):
        with pytest.raises(Skipped, match="emulated"):
            task(run)


@pytest.mark.parametrize("peer", training_peers.PEERS)
def test_a_peer_gives_batches_of_whole_inner_chunks(run, peer):
    pytest.importorskip("torch", reason="PyTorch is not installed in this lane")
    pytest.importorskip(peer, reason=f"{peer} is not installed in this lane")
    stored = images.store(TINY, "zstd", run.root)
    loader = training_peers.open_data(peer, stored, TINY, n_workers=0)
    labels = np.concatenate([images.made(TINY.n_distinct_images)[1]] * 2)
    assert len(loader) == 8
    for _ in range(2):
        batches = list(loader)
        assert {tuple(x.shape) for x, _ in batches} == {(32, 64, 64)}
        seen = np.concatenate([y.numpy() for _, y in batches])
        assert np.array_equal(np.sort(seen), np.sort(labels))


def test_the_ratios_of_a_training_are_what_loading_leaves_of_a_step():
    rows = {
        "training/ours/zstd/chunk": {"wait_share": 0.03, "samples_s": 300.0},
        "training/ours/zstd/perfect": {"wait_share": 0.2, "samples_s": 250.0},
        "training/dataloader-zarr/zstd": {"samples_s": 100.0},
    }
    found = {ratio.what: ratio for ratio in ratios.ratios(rows) if ratio.found}
    waits = "training zstd/{}: data wait < 5 % of the step"
    assert found[waits.format("chunk")].found == pytest.approx(0.97)
    assert found[waits.format("perfect")].found < found[waits.format("chunk")].target
    assert found["training zstd / DataLoader over zarr"].found == 3.0
