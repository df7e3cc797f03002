"""Train on several processes: each gets its part of every global batch.

    torchrun --standalone --nproc_per_node 2 examples/distributed.py mnist.zarr

``mnist.zarr`` is that of ``examples/mnist.py``. Needs torch:
``pip install '.[torch]'``.

The loader asks torch.distributed which rank it is. All ranks take as many steps, so no
process waits for one that has nothing left.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gpushard


def make_loader(group: gpushard.Group) -> gpushard.Loader:
    """Batches of this rank."""
    return gpushard.Loader(
        {"images": group["images"], "labels": group["labels"]},
        batch_size=64,
        shuffle=True,
        block="chunk",
        buffer_blocks=64,
        scale={"images": 1 / 255},
        dtype={"labels": "int64"},
        to="torch",
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, and tell what the ranks did."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("place", help="path or URL of mnist.zarr")
    parser.add_argument("--epochs", type=int, default=1)
    given = parser.parse_args(arguments)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 10))
    )
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    n_samples, loss = 0, torch.zeros(())
    with make_loader(gpushard.open_group(given.place)) as loader:
        for _ in range(given.epochs):
            for batch in loader:
                optimiser.zero_grad()
                scores = model(batch["images"])
                loss = torch.nn.functional.cross_entropy(scores, batch["labels"])
                loss.backward()
                optimiser.step()
                n_samples += len(batch["labels"])
    total = torch.tensor([n_samples])
    dist.all_reduce(total)
    if dist.get_rank() == 0:
        print(f"{dist.get_world_size()} ranks, {int(total)} samples, loss {loss:.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
