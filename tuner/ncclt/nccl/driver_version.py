"""NVIDIA's driver, as reported by the loaded kernel module."""

from __future__ import annotations

import re

DRIVER_FILE = "/proc/driver/nvidia/version"
"""Written by the module itself; it exists in containers too, and needs no program."""

_MODULE = re.compile(r"NVRM version:[^\n]*?[ \t](\d{2,4}(?:\.\d{1,4}){1,2})(?=[ \t\r\n]|$)")
"""`NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 ...`, and the open module's
`... Open Kernel Module for x86_64  570.86.15  Release Build ...`."""


def drivers_in(text: str) -> tuple[str, ...]:
    """Return the versions in one or more copies of `DRIVER_FILE`, each once, in order."""
    return tuple(dict.fromkeys(sorted(_MODULE.findall(text))))
