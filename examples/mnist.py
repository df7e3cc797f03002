"""Train a small net on MNIST, stop in mid-epoch, resume: the weights are the same.

    python examples/mnist.py mnist.zarr --checkpoint run.pt --stop-after 200
    python examples/mnist.py mnist.zarr --checkpoint run.pt

The second call goes on with the very next batch. ``mnist.zarr`` is a group of arrays
``images`` (n, 28, 28), uint8, and ``labels`` (n,), uint8, such as
``tests/data/real/mnist.zarr`` of a checkout. The last fifth is held back. Needs torch:
``pip install '.[torch]'``.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

import gpushard

HELD_BACK = 0.2


def make_model() -> torch.nn.Module:
    """Two convolutions and a linear layer."""
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 8, 5, stride=2),
        torch.nn.ReLU(),
        torch.nn.Conv2d(8, 16, 3, stride=2),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(400, 10),
    )


def make_loader(group: gpushard.Group, n_training: int) -> gpushard.Loader:
    """Batches of the first samples, in another order each epoch."""

    def order(epoch: int) -> np.ndarray:
        return np.random.default_rng(epoch).permutation(n_training)

    return gpushard.Loader(
        {"images": group["images"], "labels": group["labels"]},
        batch_size=64,
        sampler=order,
        scale={"images": 1 / 255},
        dtype={"labels": "int64"},
        to="torch",
    )


class Training:
    """Everything that goes on: the model, its optimiser and the loader."""

    def __init__(self, place: str) -> None:
        torch.manual_seed(0)
        self.group = gpushard.open_group(place)
        self.n_training = int(len(self.group["labels"]) * (1 - HELD_BACK))
        self.model = make_model()
        self.optimiser = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        self.loader = make_loader(self.group, self.n_training)

    def save(self, path: Path) -> None:
        """Write a checkpoint; the loader's part of it is small JSON."""
        parts = (self.model, self.optimiser, self.loader)
        torch.save([part.state_dict() for part in parts], path)

    def resume(self, path: Path) -> None:
        """Go on where a checkpoint was written."""
        parts = (self.model, self.optimiser, self.loader)
        for part, state in zip(parts, torch.load(path), strict=True):
            part.load_state_dict(state)

    def step(self, batch: dict[str, torch.Tensor]) -> float:
        """Learn from a batch; its loss."""
        self.optimiser.zero_grad()
        scores = self.model(batch["images"][:, None])
        loss = torch.nn.functional.cross_entropy(scores, batch["labels"])
        loss.backward()
        self.optimiser.step()
        return float(loss.detach())

    def accuracy(self) -> float:
        """Part of the images held back that are told right."""
        images = self.group["images"][self.n_training :]
        labels = self.group["labels"][self.n_training :]
        with torch.no_grad():
            scores = self.model(torch.from_numpy(images[:, None] / np.float32(255)))
        return float((scores.argmax(1).numpy() == labels).mean())


def main(arguments: Sequence[str] | None = None) -> Training:
    """Train for some epochs, or until told to stop."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("place", help="path or URL of mnist.zarr")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--stop-after", type=int, default=-1, metavar="STEPS")
    parser.add_argument("--checkpoint", type=Path)
    given = parser.parse_args(arguments)
    training = Training(given.place)
    if given.checkpoint and given.checkpoint.exists():
        training.resume(given.checkpoint)
    n_steps = 0
    with training.loader as loader:
        while loader.epoch < given.epochs and n_steps != given.stop_after:
            for batch in loader:
                training.step(batch)
                n_steps += 1
                if n_steps == given.stop_after:
                    break
    if given.checkpoint:
        training.save(given.checkpoint)
    speed = loader.stats()["samples_per_second"]
    print(f"{n_steps} steps, {speed:,.0f} samples/s")
    print(f"accuracy {training.accuracy():.3f}")
    return training


if __name__ == "__main__":
    main()
