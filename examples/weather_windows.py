"""Learn the next month's wind from this month's, in windows of a weather archive.

    gpushard sample demo.zarr
    python examples/weather_windows.py demo.zarr

Input and target are windows of the same arrays, the target one month ahead; packed
integers become metres per second as they are loaded. The sample has two months only:
with a longer archive nothing here changes. Needs torch: ``pip install '.[torch]'``.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import torch

import gpushard

WINDOW = (1, 3, 48, 96)  # month, level, latitude, longitude
STRIDE = (1, 3, 24, 48)
SPEED = 20.0  # metres per second, to learn with numbers of about one


def make_loader(group: gpushard.Group) -> gpushard.Loader:
    """Pairs of windows of both components of the wind, a month apart."""
    components = ("u", "v")
    arrays = {name: group[name] for name in components}
    arrays |= {f"next_{name}": group[name] for name in components}
    packing = {name: array.attrs for name, array in arrays.items()}
    return gpushard.Loader(
        arrays,
        batch_size=8,
        shuffle=True,
        seed=1,
        window=dict.fromkeys(arrays, WINDOW),
        stride=STRIDE,
        lead={f"next_{name}": 1 for name in components},
        scale={n: p["scale_factor"] / SPEED for n, p in packing.items()},
        offset={n: p["add_offset"] / SPEED for n, p in packing.items()},
        dtype="float32",
        to="torch",
    )


def main(arguments: Sequence[str] | None = None) -> list[float]:
    """Mean squared error of each epoch, in (m/s)^2."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("place", help="path or URL of a group with u and v")
    parser.add_argument("--epochs", type=int, default=5)
    given = parser.parse_args(arguments)
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(6, 16, 3, padding=1),
        torch.nn.Tanh(),
        torch.nn.Conv2d(16, 6, 3, padding=1),
    )
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    errors: list[float] = []
    with make_loader(gpushard.open_group(given.place)) as loader:
        for epoch in range(given.epochs):
            losses: list[float] = []
            for batch in loader:
                now = torch.cat([batch["u"], batch["v"]], dim=2)[:, 0]
                then = torch.cat([batch["next_u"], batch["next_v"]], dim=2)[:, 0]
                optimiser.zero_grad()
                loss = torch.nn.functional.mse_loss(now + model(now), then)
                loss.backward()
                optimiser.step()
                losses.append(float(loss.detach()) * SPEED**2)
            errors.append(sum(losses) / len(losses))
            print(f"epoch {epoch}: {errors[-1]:.1f} (m/s)^2")
    return errors


if __name__ == "__main__":
    main()
