"""Benchmarks: each builds commands and reads their results.

A benchmark is a class that keeps the contract of `ncclt.measure.benchmarks.benchmark.Benchmark`. The built-in ones are
in `BENCHMARKS`; those of third parties, made without arguments, are found under the entry points `ncclt.benchmarks`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ncclt.class_table import ClassTable

if TYPE_CHECKING:
    from ncclt.measure.benchmarks.benchmark import Benchmark

BENCHMARKS: dict[str, str] = {
    "nccl_tests": "ncclt.measure.benchmarks.nccl_tests.benchmark:NcclTests",
    "torch_collectives": "ncclt.measure.benchmarks.torch_collectives:TorchCollectives",
}
"""The built-in benchmarks: name -> class."""

_TABLE = ClassTable(kind="benchmark", group="ncclt.benchmarks", built_in=BENCHMARKS)


def benchmark_names() -> tuple[str, ...]:
    """Return the names of all benchmarks, the built-in ones first; none is imported."""
    return _TABLE.names()


def create_benchmark(name: str, **options: Any) -> Benchmark:
    """Import a benchmark and create it.

    Raises:
        UsageError: no benchmark has this name, or it refuses an option.
        MissingDependencyError: a third party's benchmark cannot be imported.
    """
    benchmark: Benchmark = _TABLE.load(name)(**options)
    return benchmark
