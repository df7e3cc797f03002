"""Kernels of a CUDA device: compiled by CuPy's NVRTC when first used, and kept."""

from __future__ import annotations

import threading
from contextlib import suppress
from hashlib import sha256
from typing import Any

from gpushard.cached_files import cache_directory, keep_file
from gpushard.devices.kernels import KernelSource, load_kernel_sources, nvrtc_options
from gpushard.errors import DeviceError, UnsupportedError

# A file may be cut off if the machine stops, and the driver is told no size: it would
# refuse the kernel in every later process, or read what lies behind.
_DIGEST_NBYTES = sha256().digest_size


def architecture_for(nvrtc: Any, capability: tuple[int, int]) -> tuple[int, int]:
    """Architecture that `nvrtc` compiles for and a device of `capability` runs.

    A device runs the code of older ones with the same major number, so a device that is
    newer than NVRTC may have one. Raises `UnsupportedError` if there is none.
    """
    known = [divmod(number, 10) for number in nvrtc.getSupportedArchs()]
    if capability in known:
        return capability
    usable = [a for a in known if a[0] == capability[0] and a <= capability]
    if usable:
        # Not the newest: some, such as sm_87 and sm_101, are of embedded boards, and
        # other devices do not run their code.
        return min(usable)
    major, minor = nvrtc.getVersion()
    raise UnsupportedError(
        f"NVRTC {major}.{minor} is older than the device",
        expected="one that compiles for sm_{}{}".format(*capability),
        got=f"at most sm_{max(nvrtc.getSupportedArchs())}",
        hint="install a newer nvidia-cuda-nvrtc",
    )


class CudaModules:
    """The kernels that one device has loaded.

    `cuda` is the module ``cupy.cuda``; `label` is the device's. The kernels are
    compiled for `architecture`, such as (9, 0).
    """

    def __init__(self, cuda: Any, architecture: tuple[int, int], label: str) -> None:
        self._cuda = cuda
        self._architecture = architecture
        self._label = label
        self._modules: dict[str, Any] = {}
        self._functions: dict[str, Any] = {}
        # Compiling takes seconds, without the GIL: threads that need one source at a
        # time would all do it. Another device has its own lock, as one that is stuck
        # never ends to load.
        self._loading = threading.Lock()

    def known(self, kernel: str) -> int:
        """What `function` gives, 0 if that has still to be loaded."""
        function = self._functions.get(kernel)
        return 0 if function is None else function.ptr

    def function(self, kernel: str) -> int:
        """Handle with which the driver launches a kernel on the current device.

        Raises `DeviceError` if the kernel does not compile.
        """
        with self._loading:
            return self._loaded(kernel).ptr

    def _loaded(self, kernel: str) -> Any:
        """The kernel; loaded with the others of its source, unless that was done."""
        if kernel not in self._functions:
            source = load_kernel_sources()[kernel]
            module = self._modules.get(source.name)
            if module is None:
                module = self._cuda.function.Module()
                module.load(self.cubin(source))
                self._modules[source.name] = module
            self._functions[kernel] = module.get_function(kernel)
        return self._functions[kernel]

    def cubin(self, source: KernelSource) -> bytes:
        """Machine code of a source; read from the disk if it was kept there whole.

        Raises `DeviceError` if the source does not compile.
        """
        version = ".".join(map(str, self._cuda.nvrtc.getVersion()))
        major, minor = self._architecture
        name = f"{source.digest}-sm{major}{minor}-nvrtc{version}.cubin"
        # Nobody may have a home, or search it: a container runs as any user.
        with suppress(OSError):
            kept = (cache_directory() / "kernels" / name).read_bytes()
            cubin, digest = kept[:-_DIGEST_NBYTES], kept[-_DIGEST_NBYTES:]
            if sha256(cubin).digest() == digest:
                return cubin
        cubin = self._compile(source)
        with suppress(FileNotFoundError):
            with_digest = cubin + sha256(cubin).digest()
            keep_file(cache_directory() / "kernels" / name, with_digest)
        return cubin

    def _compile(self, source: KernelSource) -> bytes:
        nvrtc = self._cuda.nvrtc
        # CuPy encodes source and options itself, but takes headers encoded.
        headers = [text.encode() for text in source.headers.values()]
        names = [name.encode() for name in source.headers]
        program = nvrtc.createProgram(source.text, source.name, headers, names)
        try:
            nvrtc.compileProgram(program, nvrtc_options(self._architecture))
            return nvrtc.getCUBIN(program)
        except nvrtc.NVRTCError as error:
            raise DeviceError(
                f"{source.name} does not compile for {self._label}",
                got=nvrtc.getProgramLog(program)[-500:],
            ) from error
        finally:
            nvrtc.destroyProgram(program)
