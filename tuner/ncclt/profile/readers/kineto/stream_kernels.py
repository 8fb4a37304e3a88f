"""When the kernels of a trace ran, read off its bytes: they are too many to parse each, and four fields are wanted."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from typing import Any

from ncclt.profile.readers.kineto.exposure import KernelTimeline
from ncclt.profile.readers.kineto.job import number
from ncclt.profile.readers.kineto.stream import ESCAPED_ASCII

KERNEL_CATEGORIES = frozenset({"kernel", "Kernel"})
_COPIES = "gpu_memcpy"
_WITHIN_GPU = "Memcpy DtoD"
_BETWEEN_GPUS = "Memcpy PtoP"

_SPACE = rb"[ \t\n\r]*+"
_COLON = _SPACE + rb":" + _SPACE
_COMMA = _SPACE + rb"," + _SPACE
_NUMBER = rb"(-?[0-9]++(?:\.[0-9]++)?+(?:[eE][-+]?[0-9]++)?+)"
# The order in which Kineto writes the fields (libkineto/src/output_json.cpp, 2022 to 2026). Where others follow the
# category, the category alone is found.
_KERNEL = re.compile(
    rb'"cat"' + _COLON + rb'"([kK]ernel|gpu_memcpy)"'
    rb"(?:"
    + _COMMA
    + rb'"name"'
    + _COLON
    + rb'"([^"]*+)"'
    + _COMMA
    + rb'"pid"'
    + _COLON
    + rb"([0-9]++)"
    + _COMMA
    + rb'"tid"'
    + _COLON
    + rb"[0-9]++"
    + _COMMA
    + rb'"ts"'
    + _COLON
    + _NUMBER
    + _COMMA
    + rb'"dur"'
    + _COLON
    + _NUMBER
    + _SPACE
    + rb"[,}])?+"
)
_COMPLETE = re.compile(rb'"ph"' + _COLON + rb'"X"' + _COMMA + rb"\Z")
_WITHIN = 64


def note_kernels(timeline: KernelTimeline, data: bytes, parse: Callable[[], list[Any]]) -> None:
    """Add the kernels, and the copies from a GPU's memory to its own or another's, among some events to a timeline.

    Args:
        timeline: what they are added to.
        data: the bytes of complete events.
        parse: returns the same events parsed; asked only where not all kernels are laid out as Kineto does it.

    Raises:
        TraceError: from `parse`.
    """
    found = list(_KERNEL.finditer(data))
    plain = all(kernel[2] is not None and _is_complete(data, kernel.start()) for kernel in found)
    if plain and data.find(b"\\") >= 0:
        # A quote may be escaped and the name go on behind it; or the category hides behind a number.
        plain = not any(b"\\" in kernel[2] for kernel in found) and not ESCAPED_ASCII.search(data)
    if plain:
        for kernel in found:
            category, name, device, start_us, duration_us = kernel.groups()
            _note(
                timeline,
                category.decode(),
                name.decode(errors="replace"),
                float(start_us),
                float(duration_us),
                sys.intern(device.decode()),
            )
        return
    for row in parse():
        if isinstance(row, Mapping) and row.get("ph") == "X":
            times = number(row.get("ts")), number(row.get("dur"))
            _note(timeline, str(row.get("cat")), str(row.get("name")), *times, str(row.get("pid")))


def _note(timeline: KernelTimeline, category: str, name: str, start_us: float, duration_us: float, device: str) -> None:
    if category in KERNEL_CATEGORIES:
        timeline.add_kernel(name, start_us, duration_us, device)
    elif category == _COPIES and name.startswith((_WITHIN_GPU, _BETWEEN_GPUS)):
        timeline.add_copy(start_us, duration_us, device, leaves_gpu=name.startswith(_BETWEEN_GPUS))


def _is_complete(data: bytes, category: int) -> bool:
    """Return whether the phase of an event stands directly before its category and says that it has a duration."""
    return _COMPLETE.search(data, max(0, category - _WITHIN), category) is not None
