"""NVRTC compiles every kernel for every architecture, into the code it should be."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import settings

from cuda_host.nvrtc import (
    Compiled,
    compile_apart,
    compile_cubin,
    compile_once,
    disassemble,
    nvrtc_of_cuda_12,
    supported_architectures,
)
from gpushard.devices.kernels import (
    KernelSource,
    kernel_directory,
    load_kernel_sources,
    nvrtc_options,
    parse_kernel_source,
)
from gpushard.errors import DeviceError

# The oldest, that whose source differs (scatter_planes.cu), and two that are optimised:
# on all of them the kernels whose registers are bounded take as many, but for a few
# (docs/decisions/2026-11-22-cost-of-kernel-tests.md), and NVRTC takes most of its time
# to optimise. `./dev explore` has it do so for all, and has those between them, too.
ARCHITECTURES = [(7, 5), (9, 0), (10, 0), (12, 0)]
OPTIMISED = {(9, 0), (12, 0)}
if settings.get_current_profile_name() == "explore":
    ARCHITECTURES += [(8, 0), (8, 6), (8, 9), (11, 0)]
    OPTIMISED = set(ARCHITECTURES)

SOURCES = sorted({s.name: s for s in load_kernel_sources().values()}.items())
each_source = pytest.mark.parametrize(
    "source", [s for _, s in SOURCES], ids=[name for name, _ in SOURCES]
)

# What divides long words takes some hundred instructions for each of them.
SCATTERS = ("scatter.cu", "scatter_planes.cu", "scatter_turn.cu")

# What ptxas tells when asked about registers; everything else is a complaint.
INFORMATION = re.compile(r"ptxas( info)?\s*[:.] ")
LOCAL_MEMORY = re.compile(
    r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads"
)


def program(source, architecture):
    """What NVRTC is asked for: code as a device would get it, or unoptimised code."""
    options = [*nvrtc_options(architecture), "--ptxas-options=-v"]
    if architecture not in OPTIMISED:
        options.append("--Ofast-compile=max")
    return source.name, source.text, source.headers, options


def compile_source(source, architecture) -> Compiled:
    """Optimised machine code of a source."""
    assert architecture in OPTIMISED
    return compile_once(*program(source, architecture))


def is_supported(architecture):
    return 10 * architecture[0] + architecture[1] in supported_architectures()


@cache
def compile_the_rest():
    """Compile all sources for all architectures that they are not optimised for."""
    rest = [a for a in ARCHITECTURES if a not in OPTIMISED and is_supported(a)]
    compile_apart([program(source, a) for a in rest for _, source in SOURCES])


@each_source
def test_cuda_12_takes_every_source(source):
    """Its front end, which knows less than that of CUDA 13."""
    options = [*nvrtc_options((9, 0)), "--fdevice-syntax-only"]
    library = nvrtc_of_cuda_12()
    found = compile_cubin(source.name, source.text, source.headers, options, library)
    assert found.log == ""
    assert found.cubin


def complaints(log):
    return [line for line in log.splitlines() if not INFORMATION.match(line)]


def local_memory_nbytes(log):
    return sum(int(n) for found in LOCAL_MEMORY.findall(log) for n in found)


def long_divisions(cubin):
    return re.findall(rb"__cuda_sm20_(?:div|rem)_[us]64", cubin)


def planted(text):
    return KernelSource("planted.cu", text, {}, {}, "")


@each_source
@pytest.mark.parametrize(
    "architecture", ARCHITECTURES, ids=lambda a: f"sm_{a[0]}{a[1]}"
)
def test_every_kernel_compiles_without_a_warning_or_a_spill(source, architecture):
    if not is_supported(architecture):
        pytest.skip(f"this NVRTC does not know sm_{architecture[0]}{architecture[1]}")
    is_optimised = architecture in OPTIMISED
    if not is_optimised:
        compile_the_rest()
    compiled = compile_once(*program(source, architecture))
    assert compiled.cubin, compiled.log
    assert complaints(compiled.log) == []
    for kernel in source.threads:
        assert f"\0{kernel}\0".encode() in compiled.cubin
    if source.name in SCATTERS:
        assert not long_divisions(compiled.cubin)
    if is_optimised:
        assert len(LOCAL_MEMORY.findall(compiled.log)) >= len(source.threads)
        assert local_memory_nbytes(compiled.log) == 0, compiled.log


def test_a_warning_an_error_and_local_memory_do_not_go_unseen():
    head = 'extern "C" __global__ void gs_bad(volatile float* out, int n) '
    warned = compile_source(planted(head + "{ int unused = n; }"), (9, 0))
    assert warned.cubin
    assert complaints(warned.log)
    refused = compile_source(planted(head + "{ undeclared(n); }"), (9, 0))
    assert not refused.cubin
    assert "undeclared" in refused.log
    local = "{ float a[64]; for (int i = 0; i < n; i++) a[i & 63] = out[i];"
    spilled = compile_source(planted(f"{head}{local} out[n] = a[n & 63]; }}"), (9, 0))
    assert complaints(spilled.log) == []
    assert local_memory_nbytes(spilled.log) > 0


@pytest.mark.parametrize("architecture", [ARCHITECTURES[0], ARCHITECTURES[-1]])
def test_a_division_of_long_words_does_not_go_unseen(architecture):
    head = 'extern "C" __global__ void gs_bad(long long* out, long long n) '
    divided = program(planted(head + "{ out[0] /= n; }"), architecture)
    if architecture not in OPTIMISED:
        compile_apart([divided])
    assert long_divisions(compile_once(*divided).cubin)


@cache
def disassembled(name):
    """Machine instructions of all kernels of a source, which take a second to list."""
    source = dict(SOURCES)[name]
    with TemporaryDirectory() as directory:
        return disassemble(compile_source(source, (9, 0)).cubin, Path(directory))


@pytest.mark.parametrize("kind", ["copy", "planes"])
def test_scatter_moves_sixteen_bytes_at_once(kind):
    kernels = disassembled(load_kernel_sources()[f"gs_scatter_{kind}_4"].name)
    moving = [name for name in kernels if name.startswith(f"gs_scatter_{kind}_")]
    assert len(moving) == 3
    for name in moving:
        code = "\n".join(kernels[name])
        assert re.search(r"LDG\.E\S*\.128", code), name
        assert re.search(r"STG\.E\S*\.128", code), name


INSTRUCTION = re.compile(r"([A-Z][A-Z0-9_]*(?:\.\w+)*) +([^,;]*),?([^;]*);")
REGISTER = re.compile(r"\bR(\d+)\b")
# Streamed: a cache gives up their lines first.
WIDE, WORD = r"LDG\.E\.EF\.128", r"LDG\.E\.EF"


def loads_in_flight(code, load):
    """Numbers of loads of a kind before an instruction looks at what one has loaded.

    A thread waits there. A store ends the count, too.
    """
    counts, n_loads = [], 0
    pending: set[int] = set()
    for line in code:
        found = INSTRUCTION.search(line.split("*/", 1)[-1])
        if found is None:
            continue
        operation, target, operands = found.groups()
        used = {int(r) for r in REGISTER.findall(operands)}
        if operation.startswith("ST") or used & pending:
            counts.append(n_loads)
            n_loads, pending = 0, set()
        if re.fullmatch(load, operation):
            first = int(target.removeprefix("R"))
            pending |= set(range(first, first + (4 if load == WIDE else 1)))
            n_loads += 1
    return [n for n in (*counts, n_loads) if n]


def most_loads_in_flight(code, load):
    return max(loads_in_flight(code, load))


def code_of(kernel):
    """Machine instructions of a kernel."""
    return disassembled(load_kernel_sources()[kernel].name)[kernel]


def test_a_lane_has_four_loads_on_their_way_before_it_looks_at_one():
    assert most_loads_in_flight(code_of("gs_scatter_copy_2"), WIDE) == 4
    assert most_loads_in_flight(code_of("gs_scatter_copy_4"), WIDE) == 4
    assert most_loads_in_flight(code_of("gs_scatter_copy_32"), WIDE) == 1


def test_a_lane_has_words_of_all_planes_of_two_units_on_their_way():
    # Two items of 2 bytes, two of 4, one of 8.
    assert sorted(loads_in_flight(code_of("gs_scatter_planes_2"), WORD)) == [4, 8, 8]


def test_a_thread_has_all_loads_of_a_patch_on_their_way():
    assert most_loads_in_flight(code_of("gs_scatter_turn_4"), WIDE) == 4


def test_a_load_that_is_looked_at_at_once_does_not_go_unseen(tmp_path):
    head = (
        'extern "C" __global__ void gs_bad(const uint4* __restrict__ in, uint4* out) '
    )
    ahead = "uint4 a = __ldcs(in), b = __ldcs(in + 64);"
    at_once = "uint4 a = __ldcs(in), b = __ldcs(in + a.x);"
    for body, most in ((ahead, 2), (at_once, 1)):
        text = f"{head}{{ {body} out[0] = a; out[1] = b; }}"
        code = disassemble(compile_source(planted(text), (9, 0)).cubin, tmp_path)
        assert most_loads_in_flight(code["gs_bad"], WIDE) == most


REGISTERS = re.compile(r"Function properties for (\w+)\n.*\n.*Used (\d+) registers")


def test_few_loops_take_few_registers():
    # 64 let a multiprocessor hold 32 warps of the 64 it has room for, 80 hold 24.
    used = dict(REGISTERS.findall(compile_source_log("gs_scatter_copy_2")))
    assert int(used["gs_scatter_copy_2"]) <= 64
    assert int(used["gs_scatter_copy_4"]) <= 80
    assert int(used["gs_scatter_copy_32"]) <= 40


def compile_source_log(kernel):
    return compile_source(load_kernel_sources()[kernel], (9, 0)).log


@each_source
def test_kernels_neither_stop_the_device_nor_print_nor_need_a_toolkit(source):
    own = {name: t for name, t in source.headers.items() if name != "common.cuh"}
    for name, text in {source.name: source.text, **own}.items():
        code = re.sub(r"//.*", "", text)
        found = re.findall(
            r"\b(?:printf|assert|__trap|malloc|std::)\b|#include <", code
        )
        assert found == [], name


def test_products_and_sums_are_not_fused(tmp_path):
    body = "{ out[0] = out[1] * out[2] + out[3]; }"
    text = f'extern "C" __global__ void gs_sum(float* out) {body}'
    code = disassemble(compile_source(planted(text), (9, 0)).cubin, tmp_path)
    assert any("FMUL" in line for line in code["gs_sum"])
    assert not any("FFMA" in line for line in code["gs_sum"])


def test_a_source_is_hashed_with_all_that_it_includes(tmp_path):
    (tmp_path / "deep.cuh").write_text("constexpr int deep = 1;\n")
    (tmp_path / "near.cuh").write_text('#include "deep.cuh"\n')
    kernel = tmp_path / "a.cu"
    kernel.write_text(
        '#include "near.cuh"\n#include "deep.cuh"\n'
        "constexpr int gs_a_threads = 96;\n"
        'extern "C" __global__ void __launch_bounds__(gs_a_threads)\n'
        "    gs_a(int* out) { *out = deep; }\n"
    )
    source = parse_kernel_source(kernel, tmp_path)
    assert dict(source.threads) == {"gs_a": 96}
    assert set(source.headers) == {"near.cuh", "deep.cuh"}
    again = parse_kernel_source(kernel, tmp_path)
    assert again.digest == source.digest
    (tmp_path / "deep.cuh").write_text("constexpr int deep = 2;\n")
    assert parse_kernel_source(kernel, tmp_path).digest != source.digest


def test_an_incomplete_installation_is_refused_by_name(tmp_path):
    kernel = tmp_path / "a.cu"
    kernel.write_text('#include "gone.cuh"\n')
    with pytest.raises(DeviceError, match=r"gone\.cuh is missing.*reinstall"):
        parse_kernel_source(kernel, tmp_path)
    kernel.write_text('extern "C" __global__ void gs_a(int* out) {}\n')
    with pytest.raises(DeviceError, match=r"numbers of threads do not match.*gs_a"):
        parse_kernel_source(kernel, tmp_path)


def test_the_sources_are_found_and_name_every_kernel_once():
    sources, directory = load_kernel_sources(), kernel_directory()
    files = [parse_kernel_source(p, directory) for p in directory.glob("*.cu")]
    assert sorted(name for file in files for name in file.threads) == sorted(sources)
    for kernel, source in sources.items():
        assert kernel in source.threads
        assert 32 <= source.threads[kernel] <= 1024
        assert source.threads[kernel] % 32 == 0
        assert (directory / source.name).is_file()


def test_options_name_the_architecture():
    assert "--gpu-architecture=sm_120" in nvrtc_options((12, 0))
    assert "--gpu-architecture=sm_86" in nvrtc_options((8, 6))
