"""One GPU through the CUDA driver: memory, streams and events.

The driver and not the runtime, because it is there wherever a GPU is: every libnccl brings a runtime of its own, linked
in, and all of them work in the device's primary context, which is this one. Functions from cuda.h, CUDA 12 and 13.
"""

from __future__ import annotations

import ctypes as c
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ncclt.errors import MissingDependencyError

_NOT_READY = 600
_NON_BLOCKING = 1
_MAJOR, _MINOR, _PROCESSORS = 75, 76, 16
"""Of CUdevice_attribute."""

_POLL_S = 50e-6

_ADDRESS, _POINTER = c.c_uint64, c.c_void_p
_PROTOTYPES: dict[str, tuple[object, ...]] = {
    "cuInit": (c.c_uint,),
    "cuDriverGetVersion": (c.POINTER(c.c_int),),
    "cuDeviceGet": (c.POINTER(c.c_int), c.c_int),
    "cuDeviceGetName": (c.c_char_p, c.c_int, c.c_int),
    "cuDeviceGetAttribute": (c.POINTER(c.c_int), c.c_int, c.c_int),
    "cuDevicePrimaryCtxRetain": (c.POINTER(_POINTER), c.c_int),
    "cuCtxSetCurrent": (_POINTER,),
    "cuMemAlloc_v2": (c.POINTER(_ADDRESS), c.c_size_t),
    "cuMemFree_v2": (_ADDRESS,),
    "cuMemGetInfo_v2": (c.POINTER(c.c_size_t), c.POINTER(c.c_size_t)),
    "cuMemcpyHtoD_v2": (_ADDRESS, _POINTER, c.c_size_t),
    "cuMemcpyDtoH_v2": (_POINTER, _ADDRESS, c.c_size_t),
    "cuMemsetD8Async": (_ADDRESS, c.c_ubyte, c.c_size_t, _POINTER),
    "cuStreamCreate": (c.POINTER(_POINTER), c.c_uint),
    "cuStreamQuery": (_POINTER,),
    "cuEventCreate": (c.POINTER(_POINTER), c.c_uint),
    "cuEventRecord": (_POINTER, _POINTER),
    "cuEventElapsedTime": (c.POINTER(c.c_float), _POINTER, _POINTER),
    "cuGetErrorName": (c.c_int, c.POINTER(c.c_char_p)),
}


class CudaCallError(Exception):
    """A function of the CUDA driver returned an error."""


class HungError(Exception):
    """Work on a stream did not end in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFacts:
    """What is measured on.

    Attributes:
        gpu: name, as the driver says it.
        compute_capability: 90 for H100 and H200.
        processors: streaming multiprocessors.
        cuda: the newest CUDA that the driver speaks, `12.8`.
    """

    gpu: str
    compute_capability: int
    processors: int
    cuda: str


class Device:
    """The first GPU of this process."""

    def __init__(self, library: Path | None = None) -> None:
        """Open it.

        Args:
            library: the driver, None = libcuda.so.1.

        Raises:
            MissingDependencyError: there is no driver.
            CudaCallError: the driver shows no GPU.
        """
        try:
            self._library = c.CDLL("libcuda.so.1" if library is None else str(library.absolute()))
            for name, arguments in _PROTOTYPES.items():
                function = getattr(self._library, name)
                function.argtypes, function.restype = arguments, c.c_int
        except (OSError, AttributeError) as error:
            raise MissingDependencyError(f"no CUDA driver here: {error}", hint="this needs an NVIDIA GPU") from error
        self._call("cuInit", 0)
        device = c.c_int()
        self._call("cuDeviceGet", c.byref(device), 0)
        self._device = device.value
        self._context = _POINTER()
        self._call("cuDevicePrimaryCtxRetain", c.byref(self._context), self._device)
        self.enter()

    def enter(self) -> None:
        """Make the device the calling thread's own: every thread must, before anything else."""
        self._call("cuCtxSetCurrent", self._context)

    def facts(self) -> DeviceFacts:
        """Return what it is."""
        name, version = c.create_string_buffer(128), c.c_int()
        self._call("cuDeviceGetName", name, len(name), self._device)
        self._call("cuDriverGetVersion", c.byref(version))
        return DeviceFacts(
            gpu=name.value.decode(errors="replace"),
            compute_capability=10 * self._attribute(_MAJOR) + self._attribute(_MINOR),
            processors=self._attribute(_PROCESSORS),
            cuda=f"{version.value // 1000}.{version.value % 1000 // 10}",
        )

    def allocate(self, size_bytes: int) -> int:
        """Return the address of new memory on the GPU, plain and not managed."""
        address = _ADDRESS()
        self._call("cuMemAlloc_v2", c.byref(address), size_bytes)
        return address.value

    def free(self, address: int) -> None:
        """Give memory back; the device waits for all its work first."""
        self._call("cuMemFree_v2", address)

    def free_bytes(self) -> int:
        """Return the memory of the GPU that no process holds."""
        free, total = c.c_size_t(), c.c_size_t()
        self._call("cuMemGetInfo_v2", c.byref(free), c.byref(total))
        return free.value

    def write(self, address: int, values: np.ndarray) -> None:
        """Copy an array to the GPU and wait until it is there."""
        array = np.ascontiguousarray(values)
        self._call("cuMemcpyHtoD_v2", address, array.ctypes.data, array.nbytes)

    def read(self, address: int, count: int, kind: np.dtype) -> np.ndarray:
        """Return a copy of elements that lie on the GPU."""
        copy = np.empty(count, kind)
        if count:
            self._call("cuMemcpyDtoH_v2", copy.ctypes.data, address, copy.nbytes)
        return copy

    def fill(self, address: int, size_bytes: int, value: int, stream: c.c_void_p) -> None:
        """Set bytes on the GPU, in the order of a stream."""
        self._call("cuMemsetD8Async", address, value, size_bytes, stream)

    def stream(self) -> c.c_void_p:
        """Return a new stream that waits for no other."""
        handle = _POINTER()
        self._call("cuStreamCreate", c.byref(handle), _NON_BLOCKING)
        return handle

    def event(self) -> c.c_void_p:
        """Return a new event that takes the time."""
        handle = _POINTER()
        self._call("cuEventCreate", c.byref(handle), 0)
        return handle

    def record(self, event: c.c_void_p, stream: c.c_void_p) -> None:
        """Let an event happen when all that was put on the stream is done."""
        self._call("cuEventRecord", event, stream)

    def elapsed_us(self, start: c.c_void_p, stop: c.c_void_p) -> float:
        """Return the time between two events that have happened, µs."""
        milliseconds = c.c_float()
        self._call("cuEventElapsedTime", c.byref(milliseconds), start, stop)
        return milliseconds.value * 1e3

    def wait(self, stream: c.c_void_p, *, deadline: float, failed: Callable[[], str]) -> None:
        """Wait until a stream is done, by asking: a wait inside the driver could never be left.

        Args:
            stream: what to wait for.
            deadline: of time.monotonic().
            failed: asked now and then; says why there is nothing to wait for any more, or nothing.

        Raises:
            HungError: the deadline has passed, or `failed` said something.
            CudaCallError: something on the stream failed.
        """
        asked = 0
        while (code := self._library.cuStreamQuery(stream)) == _NOT_READY:
            asked += 1
            if time.monotonic() > deadline:
                raise HungError("the collective did not end in time")
            if asked % 512 == 0 and (why := failed()):
                raise HungError(why)
            time.sleep(_POLL_S)
        self._check("cuStreamQuery", code)

    def _attribute(self, number: int) -> int:
        value = c.c_int()
        self._call("cuDeviceGetAttribute", c.byref(value), number, self._device)
        return value.value

    def _call(self, name: str, *arguments: object) -> None:
        self._check(name, getattr(self._library, name)(*arguments))

    def _check(self, name: str, code: int) -> None:
        if code:
            word = c.c_char_p()
            self._library.cuGetErrorName(code, c.byref(word))
            raise CudaCallError(f"{name}: {(word.value or b'unknown').decode()} ({code})")
