"""The scripts in examples/ do what they say."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from gpushard.cli import app
from places import DIGITS, ROOT

torch = pytest.importorskip("torch", reason="PyTorch is not installed in this lane")


@pytest.fixture(autouse=True)
def _one_thread():
    """Nets this small are trained by one thread; more would wait for one another."""
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(n_threads)


def run(script, *arguments):
    """What ``main`` of a script gives, in this process."""
    names = runpy.run_path(str(ROOT / "examples" / script))
    return names["main"]([str(argument) for argument in arguments])


def test_mnist_resumed_in_mid_epoch_ends_with_the_same_weights(tmp_path):
    whole = run("mnist.py", str(DIGITS))
    assert whole.accuracy() >= 0.95
    checkpoint = ("--checkpoint", tmp_path / "run.pt")
    stopped = run("mnist.py", str(DIGITS), "--stop-after", 175, *checkpoint)
    assert stopped.loader.state_dict()["epoch"] == 1
    assert stopped.loader.state_dict()["step"] == 50
    resumed = run("mnist.py", str(DIGITS), *checkpoint)
    assert resumed.loader.epoch == 4
    for name, weights in whole.model.state_dict().items():
        assert torch.equal(weights, resumed.model.state_dict()[name])


def test_the_wind_of_the_next_month_is_learned(tmp_path):
    place = tmp_path / "demo.zarr"
    assert CliRunner().invoke(app, ["sample", str(place)]).exit_code == 0
    errors = run("weather_windows.py", place)
    assert errors[-1] < 0.8 * errors[0]


def test_two_processes_of_torchrun_share_an_epoch():
    environment = {
        k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")
    }
    environment |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    environment |= {"PYTHONFAULTHANDLER": "1"}
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    script = str(ROOT / "examples" / "distributed.py")
    done = subprocess.run(
        [sys.executable, *launch, script, str(DIGITS)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    told = re.search(r"2 ranks, (\d+) samples, loss (\d+\.\d+)", done.stdout)
    assert told is not None
    assert int(told[1]) == 10_000
    assert float(told[2]) < 1.5
