"""`gpushard doctor`: what is there, what is not, and what is to be done about it."""

from __future__ import annotations

import ctypes
import sys
from importlib.metadata import distribution
from types import SimpleNamespace

import numpy as np
import pytest

import gpushard
from cli_runs import run, run_json
from cuda_host import kvikio_standin
from gpushard.cli import diagnosis, gpu_software
from gpushard.device_reading.payload import kvikio_file
from gpushard.devices import find
from gpushard.errors import UnsupportedError


@pytest.fixture(autouse=True)
def _without_cupy(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.setitem(sys.modules, "kvikio", None)
    forget()
    yield
    forget()


def forget():
    find._usable_gpu.cache_clear()
    kvikio_file._files_of.cache_clear()


@pytest.fixture
def site(tmp_path, monkeypatch):
    """What installs distributions without anything in them."""

    def install(**versions):
        for name, version in versions.items():
            about = tmp_path / "site" / f"{name}-{version}.dist-info"
            about.mkdir(parents=True)
            text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
            (about / "METADATA").write_text(text)
        monkeypatch.syspath_prepend(tmp_path / "site")

    return install


@pytest.fixture
def driver(monkeypatch):
    """What puts a driver in place, or takes it away."""

    real = ctypes.CDLL

    def install(number):
        def load(name, *arguments):
            if name != "libcuda.so.1":
                return real(name, *arguments)
            if number is None:
                raise OSError(f"{name}: cannot open shared object file")

            def ask(reference):
                reference._obj.value = number
                return 0

            return SimpleNamespace(cuDriverGetVersion=ask)

        monkeypatch.setattr(ctypes, "CDLL", load)

    install(None)
    return install


def nvcomp(monkeypatch, cuda=13):
    label = SimpleNamespace(label="nvCOMP 6.1.2", path="/x/libnvcomp.so.6")
    label.cuda_major = cuda
    monkeypatch.setattr(gpu_software, "load_nvcomp", lambda: label)


def no_nvcomp(monkeypatch):
    def refuse():
        raise UnsupportedError("nvCOMP is not installed")

    monkeypatch.setattr(gpu_software, "load_nvcomp", refuse)


def test_doctor_tells_versions_and_the_device_with_its_reason(driver):
    facts = run_json("doctor")
    assert facts["gpushard"] == gpushard.__version__
    assert facts["library"]["numpy"] == np.__version__
    assert facts["device"] == "cpu"
    assert "CuPy is not installed" in facts["why"]
    assert facts["gpu"]["driver"].startswith("none")
    assert facts["gpu"]["cupy"] is None
    assert set(facts["compilers"]) == {"numba"}


def test_doctor_tells_nothing_of_a_place_that_is_not_there(tmp_path):
    told = run("doctor", tmp_path / "misspelt", code=2)
    assert told.stdout == ""
    assert "misspelt' does not exist" in told.stderr


def test_doctor_tells_people_the_same(driver, monkeypatch):
    nvcomp(monkeypatch)
    facts, text = run_json("doctor"), run("doctor").stdout
    assert f"numpy {np.__version__}" in text
    assert "device    cpu: no GPU is used: CuPy is not installed" in text
    assert "nvCOMP 6.1.2, CUDA 13, /x/libnvcomp.so.6" in text
    for advice in (*facts["advice"], *facts["extras"]):
        assert advice in text
    (row,) = (line for line in text.splitlines() if "]zstd " in line)
    zstandard = distribution("zstandard").version
    assert "nvCOMP 6.1.2" in row
    assert f"zstandard {zstandard}" in row


# advice


def test_two_flavours_of_cupy_are_both_named(site, driver):
    site(cupy_cuda12x="13.6.0", cupy_cuda13x="14.0.0")
    facts = run_json("doctor")
    assert facts["gpu"]["cupy"] == "cupy-cuda13x 14.0.0, cupy-cuda12x 13.6.0"
    (advice,) = (text for text in facts["advice"] if "at once" in text)
    assert "cupy-cuda13x and cupy-cuda12x are installed at once" in advice
    assert "pip uninstall -y cupy-cuda13x cupy-cuda12x" in advice
    assert advice.endswith("pip install 'gpushard[cuda13]'")


def test_what_to_keep_of_two_flavours_goes_by_the_driver(site, driver):
    driver(12080)
    site(cupy_cuda12x="13.6.0", cupy_cuda13x="14.0.0")
    (advice,) = (text for text in run_json("doctor")["advice"] if "at once" in text)
    assert advice.endswith("pip install 'gpushard[cuda12]'")


@pytest.mark.parametrize("number", [12040, 13010])
def test_a_driver_without_cupy_is_told_what_to_install(number, driver, monkeypatch):
    driver(number)
    nvcomp(monkeypatch)
    facts = run_json("doctor")
    major = number // 1000
    assert facts["gpu"]["driver"] == f"{major}.{number % 1000 // 10}"
    told = f"the driver runs CUDA {facts['gpu']['driver']}, but CuPy is missing"
    assert f"{told}: pip install 'gpushard[cuda{major}]'" in facts["advice"]


def test_cupy_without_a_driver_is_told(site, driver):
    site(cupy_cuda13x="14.0.0")
    advice = run_json("doctor")["advice"]
    assert any(
        text.startswith("cupy-cuda13x 14.0.0 is installed, but there is no NVIDIA")
        for text in advice
    )
    assert not any("kvikio" in text for text in advice)


def test_cupy_without_nvcomp_is_told_what_to_install(site, driver, monkeypatch):
    driver(12080)
    site(cupy_cuda12x="14.0.0")
    no_nvcomp(monkeypatch)
    advice = run_json("doctor")["advice"]
    assert "nvCOMP is not installed: pip install 'gpushard[cuda12]'" in advice


def test_nvcomp_for_another_cuda_than_cupys_is_told(site, driver, monkeypatch):
    driver(13000)
    site(cupy_cuda12x="14.0.0")
    nvcomp(monkeypatch, cuda=13)
    advice = run_json("doctor")["advice"]
    told = "nvCOMP is for CUDA 13, CuPy is not: pip install 'gpushard[cuda12]'"
    assert told in advice
    nvcomp(monkeypatch, cuda=12)
    assert told not in run_json("doctor")["advice"]


def test_a_library_for_two_cudas_is_a_conflict_and_its_module_is_none(site, driver):
    site(nvidia_libnvcomp_cu12="6.0.0", nvidia_nvcomp_cu12="6.0.0")
    one = gpu_software.conflicts({"nvcomp": {"nvidia-libnvcomp-cu12": "6"}})
    assert one == []
    both = {"nvidia-libnvcomp-cu12": "6", "nvidia-libnvcomp-cu13": "6"}
    assert gpu_software.conflicts({"nvcomp": both, "cupy": {}}) == [[*both]]


def test_a_gpu_without_kvikio_is_told_of_it(site, driver, monkeypatch):
    driver(13000)
    site(cupy_cuda13x="14.0.0")
    nvcomp(monkeypatch)
    advice = run_json("doctor")["advice"]
    assert any(text.endswith("pip install 'gpushard[gds13]'") for text in advice)


@pytest.mark.parametrize("name", ["obstore", "numba", "matplotlib"])
def test_what_is_missing_is_told_with_the_command(name, driver, monkeypatch):

    def without(distribution):
        return None if distribution == name else gpu_software.installed(distribution)

    monkeypatch.setattr(diagnosis, "installed", without)
    extra = {"obstore": "remote", "numba": "fast", "matplotlib": "plots"}[name]
    facts = run_json("doctor")
    told = facts["advice"] if name == "numba" else facts["extras"]
    assert any(text.endswith(f"pip install 'gpushard[{extra}]'") for text in told)
    assert f"{name} (missing)" in run("doctor").stdout


def test_gpus_are_those_that_cupy_sees(driver, monkeypatch):
    seen = {"driver": "13.1", "runtime": "13.0", "cuda:0": "H200, sm 9.0"}
    monkeypatch.setattr(gpu_software, "cuda_facts", lambda: dict(seen))
    driver(13010)
    gpu = run_json("doctor")["gpu"]
    assert {name: gpu[name] for name in seen} == seen
    assert "cuda:0    H200, sm 9.0" in run("doctor").stdout


def test_a_driver_without_a_gpu_behind_it_is_told(driver, monkeypatch):
    seen = {"trouble": "cudaErrorNoDevice"}
    monkeypatch.setattr(gpu_software, "cuda_facts", lambda: dict(seen))
    driver(12080)
    told = "12.8, of which CuPy says: none that works (cudaErrorNoDevice)"
    assert run_json("doctor")["gpu"]["driver"] == told


# GPUDirect Storage


@pytest.fixture
def kvikio(monkeypatch, site, driver):
    """A kvikio, with a driver, in its compatibility mode."""
    driver(13000)
    site(cupy_cuda13x="14.0.0", kvikio_cu13="26.10.0")
    nvcomp(monkeypatch)
    standin = kvikio_standin.install(monkeypatch, SimpleNamespace(lock=None))
    monkeypatch.setattr(standin, "is_compat", True)
    return standin


def proc(monkeypatch, tmp_path, modules="", mounts="1 0 8:1 / / rw - ext4 /dev/x rw\n"):
    for name, text in (("_MODULES", modules), ("_MOUNTS", mounts)):
        (tmp_path / name).write_text(text)
        monkeypatch.setattr(gpu_software, name, tmp_path / name)


def test_the_compatibility_mode_is_told_with_all_its_reasons(
    kvikio, monkeypatch, tmp_path
):
    mounts = "1 0 8:1 / / rw - overlay overlay rw\n"
    proc(monkeypatch, tmp_path, "ext4 1 0 - Live 0x0\n", mounts)
    monkeypatch.setenv("KVIKIO_COMPAT_MODE", "ON")
    facts = run_json("doctor")
    gds = facts["gpu"]["gds"]
    assert gds["is_active"] is False
    assert gds["why"] == (
        "kvikio is in its compatibility mode; KVIKIO_COMPAT_MODE is ON;"
        " the kernel module nvidia-fs is not loaded;"
        " it does not read overlay, as / is"
    )
    assert gds["compat_mode"] == "AUTO"
    assert gds["libcufile_version"] == [1, 16]
    assert f"GPUDirect Storage is not active: {gds['why']}" in facts["advice"]
    assert facts["gpu"]["kvikio"] == "kvikio-cu13 26.10.0"


def test_where_nothing_else_is_in_the_way_the_mode_alone_is_told(
    kvikio, monkeypatch, tmp_path
):
    proc(monkeypatch, tmp_path, "nvidia_fs 323584 0 - Live 0x0 (OE)\n")
    gds = run_json("doctor")["gpu"]["gds"]
    assert gds["why"] == "kvikio is in its compatibility mode"
    assert gds["nvidia_fs_is_loaded"] is True


def test_active_gpudirect_storage_is_told(kvikio, monkeypatch, tmp_path):
    proc(monkeypatch, tmp_path, "nvidia_fs 323584 0 - Live 0x0 (OE)\n")
    kvikio.is_compat = False
    facts = run_json("doctor")
    assert facts["gpu"]["gds"]["is_active"] is True
    assert facts["gpu"]["gds"]["why"] == ""
    assert not any("GPUDirect" in text for text in facts["advice"])
    assert "gds       active" in run("doctor").stdout


def test_what_kvikio_refuses_to_say_is_unknown(kvikio):
    del kvikio.settings["compat_mode"]
    assert kvikio_file.kvikio_facts()["compat_mode"] == "unknown ('compat_mode')"


def test_the_file_system_is_that_of_the_place_asked_for(monkeypatch, tmp_path):
    here = str(tmp_path)
    mounts = (
        "1 0 8:1 / / rw - overlay overlay rw\n"
        f"2 1 8:2 / {here}/data rw shared:1 - nfs4 server:/ rw\n"
        f"3 1 8:3 / {here}/größe/my\\040disk rw - xfs /dev/y rw\n"
        f"4 1 8:4 / {here}/dat rw - tmpfs tmpfs rw\n"
    )
    proc(monkeypatch, tmp_path, "", mounts)
    for place, expected in {
        "data": ("nfs4", f"{here}/data"),
        "data/below": ("nfs4", f"{here}/data"),
        "größe/my disk/a.zarr": ("xfs", f"{here}/größe/my disk"),
        "else": ("overlay", "/"),
    }.items():
        assert gpu_software.file_system_of(tmp_path / place) == expected
    disk = tmp_path / "größe" / "my disk"
    disk.mkdir(parents=True)
    gds = run_json("doctor", disk)["gpu"]["gds"]
    assert (gds["file_system"], gds["file_system_is_supported"]) == ("xfs", True)
