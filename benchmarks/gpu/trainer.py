"""A training that is measured: a small convolutional net, and its steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from statistics import mean, median
from time import perf_counter
from typing import Any, NamedTuple, Protocol

Batch = Any
"""What a step takes, on its device: {"x": images, "y": labels}."""

# Channels behind each convolution. Pooling halves the sides each time.
_CHANNELS = (32, 64, 128, 128)
_RATE = 1e-3


class Trainer(Protocol):
    """What trains, by steps, on a device of which only it knows."""

    @property
    def loss(self) -> float:
        """Loss of the last step."""
        ...

    def step(self, batch: Batch) -> None:
        """Enqueue a step."""
        ...

    def mark(self) -> Any:
        """A moment behind what is queued so far."""
        ...

    def seconds(self, first: Any, last: Any) -> float:
        """Time of the device between two moments that have passed."""
        ...

    def wait(self) -> None:
        """Wait until all steps are done."""
        ...


class ConvolutionalNet:
    """A net of four convolutions on the current CUDA device, computed in bfloat16."""

    def __init__(self, n_classes: int) -> None:
        import torch  # optional

        torch.backends.cudnn.benchmark = True
        torch.manual_seed(0)
        self._torch: Any = torch
        last_format = torch.channels_last
        self._net = _net(torch, n_classes).cuda().to(memory_format=last_format)
        self._optimizer = torch.optim.Adam(self._net.parameters(), _RATE, fused=True)
        self._loss: Any = None

    def step(self, batch: Batch) -> None:
        """Enqueue a step; nothing in it waits for the device."""
        torch = self._torch
        with torch.autocast("cuda", torch.bfloat16):
            logits = self._net(batch["x"].unsqueeze(1))
        labels = batch["y"].long()
        loss = torch.nn.functional.cross_entropy(logits.float(), labels)
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        self._loss = loss.detach()

    @property
    def loss(self) -> float:
        """Loss of the last step, which is waited for."""
        return float(self._loss)

    def mark(self) -> Any:
        """Event behind what is queued so far."""
        event = self._torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, first: Any, last: Any) -> float:
        """Time of the device between two events that are done."""
        return first.elapsed_time(last) / 1e3

    def wait(self) -> None:
        """Wait until all steps are done."""
        self._torch.cuda.synchronize()


def _net(torch: Any, n_classes: int) -> Any:
    nn = torch.nn
    layers: list[Any] = []
    for n_in, n_out in pairwise((1, *_CHANNELS)):
        convolution = nn.Conv2d(n_in, n_out, 3, padding=1, bias=False)
        layers += [convolution, nn.BatchNorm2d(n_out), nn.ReLU(), nn.MaxPool2d(2)]
    pooled = [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, *pooled, nn.Linear(_CHANNELS[-1], n_classes))


class Steps(NamedTuple):
    """Steps that were timed.

    Attributes
    ----------
    samples_s
        Samples a second, from the request of the first batch to the end of the last
        step; epochs are begun meanwhile, too.
    step_seconds, mean_step_seconds, slowest_step_seconds
        Of the times from the beginning of a step to that of the next one of its epoch,
        on the device: the median, the mean, and the longest. If no epoch has two
        steps, of the times of the steps.
    host_wait_share
        Part of the time in which the host waited for a batch. Its steps are queued
        ahead, so the device may have had work meanwhile.
    idle_share
        Part of the device's time between the end of a step and the beginning of the
        next one; it waits for a batch, or for the host to begin the step.
    first_wait_seconds
        How long the host waited for the first batch of an epoch, at the median.
    n_steps
        Number of steps.
    """

    samples_s: float
    step_seconds: float
    mean_step_seconds: float
    slowest_step_seconds: float
    host_wait_share: float
    idle_share: float
    first_wait_seconds: float
    n_steps: int

    def row(self) -> dict[str, Any]:
        """Columns of a row."""
        return {k: float(f"{v:.4g}") for k, v in self._asdict().items()}


def train(
    trainer: Trainer,
    epochs: Iterable[Callable[[], Iterator[Batch]]],
    longest_s: float,
    least_steps: int = 1,
) -> Steps:
    """Train until the epochs are over, or both these seconds and these steps.

    Raises `ValueError` if no epoch has a batch.
    """
    waits: list[list[float]] = []
    marks: list[list[tuple[Any, Any]]] = []
    n_steps, n_samples, started = 0, 0, perf_counter()

    def is_over() -> bool:
        return n_steps >= least_steps and perf_counter() - started > longest_s

    for begin in epochs:
        if is_over():
            break
        waits.append([])
        marks.append([])
        asked = perf_counter()
        batches = begin()
        while (batch := next(batches, None)) is not None:
            waits[-1].append(perf_counter() - asked)
            first = trainer.mark()
            trainer.step(batch)
            marks[-1].append((first, trainer.mark()))
            n_steps += 1
            n_samples += batch["y"].shape[0]
            if is_over():
                break
            asked = perf_counter()
    trainer.wait()
    if not n_steps:
        raise ValueError("no epoch has a batch")
    return _steps(trainer, waits, marks, n_samples, perf_counter() - started)


def _steps(
    trainer: Trainer,
    waits: list[list[float]],
    marks: list[list[tuple[Any, Any]]],
    n_samples: int,
    seconds: float,
) -> Steps:
    between = [pair for epoch in marks for pair in pairwise(epoch)]
    whole = [trainer.seconds(one[0], other[0]) for one, other in between]
    listed = [mark for epoch in marks for mark in epoch]
    if not whole:  # no step has a next one
        whole = [trainer.seconds(*mark) for mark in listed]
    idle = [trainer.seconds(one[1], other[0]) for one, other in pairwise(listed)]
    spanned = trainer.seconds(listed[0][0], listed[-1][1])
    return Steps(
        samples_s=n_samples / seconds,
        step_seconds=median(whole),
        mean_step_seconds=mean(whole),
        slowest_step_seconds=max(whole),
        host_wait_share=sum(map(sum, waits)) / seconds,
        idle_share=sum(idle) / spanned,
        first_wait_seconds=median(epoch[0] for epoch in waits if epoch),
        n_steps=len(listed),
    )
