"""The features of the installed nccl-tests programs, detected once, before a study.

The releases differ in their options, builds differ in MPI, and an unknown option prints the usage and exits with 0. The
usage is one text inside the program that names each option in its long form, so reading the file shows everything
without starting it. Where the programs are only on the compute nodes, or are wrapped by scripts, one is run with `-h`,
which needs no GPU. Long names decide: some builds have other options under the same letter.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ncclt.core.message import Collective
from ncclt.core.nccl_version import NcclVersion
from ncclt.errors import UsageError
from ncclt.measure.benchmarks.benchmark import CommandOutput
from ncclt.nccl.nccl_tests.reason import failure_reason

PROGRAMS: Mapping[Collective, str] = {
    Collective.ALL_REDUCE: "all_reduce_perf",
    Collective.ALL_GATHER: "all_gather_perf",
    Collective.REDUCE_SCATTER: "reduce_scatter_perf",
    Collective.BROADCAST: "broadcast_perf",
    Collective.REDUCE: "reduce_perf",
    Collective.ALL_TO_ALL: "alltoall_perf",
    Collective.SEND_RECV: "sendrecv_perf",
}
"""The program of each collective (src/Makefile)."""

_BUILD_HINT = (
    "name the folder that holds all_reduce_perf with --nccl-tests, or build it: "
    "git clone https://github.com/NVIDIA/nccl-tests && make -C nccl-tests MPI=1 MPI_HOME=..."
)

_MPI = re.compile(rb"\x00(?:libmpi[\w.+-]*\.so[\w.]*|MPI_Init(?:_thread)?)\x00")
_RELEASE = re.compile(rb"\x00(2\.\d{1,2}\.\d{1,2})\x00")
_NOT_FOUND = re.compile(r"(?i)no such file|not found|cannot (?:find|execute)|unable to find|could not (?:find|access)")


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclTestsFeatures:
    """Features of a build of nccl-tests beyond release 2.10.

    Attributes:
        version: release; None = not known, which is common, because the usage does not contain it.
        json: `-J FILE` (since 2.17.3).
        cycles: `-N`, the sweep again in the same run (since 2.13.10).
        per_iteration: `-I`, the time of each call in the file (since 2.19.2).
        split, split_mask: NCCL_TESTS_SPLIT (since 2.14) and its predecessor NCCL_TESTS_SPLIT_MASK, which divide the
            ranks into groups; None = not known.
        mpi: whether it was built with MPI; None = not known.
        origin: how this was detected, as shown to users.
    """

    version: NcclVersion | None = None
    json: bool = False
    cycles: bool = False
    per_iteration: bool = False
    split: bool | None = None
    split_mask: bool | None = None
    mpi: bool | None = None
    origin: str = "parsing text output"


LEAST = NcclTestsFeatures()
"""The features of every release."""


def detect(
    folder: Path | None,
    *,
    collectives: Iterable[Collective] = (Collective.ALL_REDUCE,),
    run: Callable[[Sequence[str]], CommandOutput] | None = None,
) -> NcclTestsFeatures:
    """Detect what the programs can do, and check that they exist.

    Args:
        folder: of the programs; None = on the PATH.
        collectives: what will be measured; the program of each is looked for.
        run: runs a command where the benchmark will run; used only if the file does not show the features. None = the
            programs must be on this machine.

    Raises:
        UsageError: a program is missing or cannot be started.
    """
    names = [PROGRAMS[collective] for collective in sorted(set(collectives))]
    searched = str(folder) if folder else None
    programs = {name: Path(place) for name in names if (place := shutil.which(name, path=searched))}
    if programs and len(programs) < len(names):
        missing = ", ".join(name for name in names if name not in programs)
        raise UsageError(f"nccl-tests has no {missing} in {next(iter(programs.values())).parent}", hint=_BUILD_HINT)
    if programs:
        content = next(iter(programs.values())).read_bytes()
        if b"--minbytes" in content:
            return _features_of_file(content, str(programs[names[0]]))
    program = str(folder / names[0]) if folder else names[0]
    if run is not None:
        return _features_of_usage(program, run((program, "-h")))
    if not programs:
        where = f"in {folder}" if folder else "on the PATH"
        raise UsageError(f"nccl-tests' {names[0]} is not {where}", hint=_BUILD_HINT)
    return LEAST


def _features_of_file(content: bytes, shown: str) -> NcclTestsFeatures:
    releases = set(_RELEASE.findall(content)) if b"nccl-tests version" in content else set()
    return NcclTestsFeatures(
        version=NcclVersion.parse(releases.pop().decode()) if len(releases) == 1 else None,
        json=b"--output_file" in content,
        cycles=b"--run_cycles" in content,
        per_iteration=b"--per_iter_timing" in content,
        split=b"NCCL_TESTS_SPLIT\x00" in content,
        split_mask=b"NCCL_TESTS_SPLIT_MASK\x00" in content,
        mpi=_MPI.search(content) is not None,
        origin=f"read from {shown}",
    )


def _features_of_usage(program: str, output: CommandOutput) -> NcclTestsFeatures:
    printed = f"{output.stdout}\n{output.stderr}"
    if "--minbytes" in printed:
        return NcclTestsFeatures(
            json="--output_file" in printed,
            cycles="--run_cycles" in printed,
            per_iteration="--per_iter_timing" in printed,
            origin=f"from the usage of {program}",
        )
    missing = _NOT_FOUND.search(printed) and "shared librar" not in printed
    if missing or output.exit_code == 127:
        raise UsageError(f"cannot find nccl-tests where they would run: {failure_reason(printed)}", hint=_BUILD_HINT)
    raise UsageError(
        f"nccl-tests' {program} does not start where it would run: {failure_reason(printed)}",
        hint="run the same program with -h by hand; its libraries (NCCL, CUDA, MPI) have to be found there",
    )
