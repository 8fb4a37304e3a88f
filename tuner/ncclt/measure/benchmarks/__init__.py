"""What runs: a benchmark builds a command and reads its result.

A benchmark is one module with a function `create(**options) -> Benchmark`. The built-in ones are in `BENCHMARKS`;
others are found under the entry-point group `ncclt.benchmarks`, whose value is such a module. A module is imported on
demand.
"""

from __future__ import annotations

from types import ModuleType

from ncclt.errors import NotFoundError

BENCHMARKS: dict[str, str] = {
    "nccl_tests": "ncclt.measure.benchmarks.nccl_tests.benchmark",
    "torch_collectives": "ncclt.measure.benchmarks.torch_collectives",
}
"""The built-in benchmarks: name -> module."""


def benchmark_modules() -> dict[str, str]:
    """Return every installed benchmark, name -> module; a third party cannot replace a built-in one."""
    from importlib.metadata import entry_points

    return {point.name: point.module for point in entry_points(group="ncclt.benchmarks")} | BENCHMARKS


def benchmark_module(name: str) -> ModuleType:
    """Import the module of a benchmark.

    Raises:
        NotFoundError: no benchmark has that name.
    """
    from importlib import import_module

    modules = benchmark_modules()
    if name not in modules:
        raise NotFoundError(f"unknown benchmark {name!r}", hint=f"known are {', '.join(sorted(modules))}")
    return import_module(modules[name])
