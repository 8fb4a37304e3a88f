"""What a build of nccl-tests can do, from its file and from its usage."""

import runpy
import subprocess
from pathlib import Path

import pytest

from ncclt.core.message import Collective
from ncclt.core.nccl_version import NcclVersion
from ncclt.errors import UsageError
from ncclt.measure.benchmarks.benchmark import CommandOutput
from ncclt.measure.benchmarks.nccl_tests.features import LEAST, NcclTestsFeatures, detect

STAND_IN = Path(__file__).parents[4] / "fakes" / "nccl_tests_stand_in.py"

USAGE = b"USAGE: %s \n\t[-b,--minbytes <min size in bytes>] \n\t"
NEWEST = (
    b"\x7fELF\x00" + USAGE + b"[-N,--run_cycles <n>] [-J,--output_file <f>] [-I,--per_iter_timing <0/1>]\x00"
    b"NCCL_TESTS_SPLIT_MASK\x00NCCL_TESTS_SPLIT\x00nccl-tests version %s\x002.19.6\x00libmpi.so.40\x00"
)
OLDEST = b"\x7fELF\x00" + USAGE + b"[-G,--cudagraph <n>]\x00NCCL_TESTS_SPLIT_MASK\x00libcudart.so.12\x00"
OTHER_I = b"\x7fELF\x00" + USAGE + b"[-I,--init_ids <num ids>]\x00"


@pytest.fixture
def build(tmp_path):
    """A folder with one program of given content."""

    def make(content, name="all_reduce_perf"):
        (tmp_path / name).write_bytes(content)
        (tmp_path / name).chmod(0o755)
        return tmp_path

    return make


def test_the_file_of_a_new_build_tells_everything(build):
    """Nothing is started: a login node may have no CUDA and no MPI."""
    found = detect(build(NEWEST), run=lambda _argv: pytest.fail("started"))
    assert found == NcclTestsFeatures(
        version=NcclVersion(2, 19, 6),
        json=True,
        cycles=True,
        per_iteration=True,
        split=True,
        split_mask=True,
        mpi=True,
        origin=f"read from {build(NEWEST) / 'all_reduce_perf'}",
    )


def test_the_file_of_an_old_build_tells_what_is_missing(build):
    """A mask is not the newer variable, although its name begins alike."""
    found = detect(build(OLDEST))
    assert (found.version, found.json, found.cycles, found.per_iteration) == (None, False, False, False)
    assert (found.split, found.split_mask, found.mpi) == (False, True, False)


def test_a_letter_with_another_meaning_is_not_used(build):
    """Builds with own options exist; -I may be something else."""
    assert not detect(build(OTHER_I)).per_iteration


@pytest.mark.parametrize(
    ("release", "json", "cycles", "per_iteration"),
    [
        ("2.10.0", False, False, False),
        ("2.13.10", False, True, False),
        ("2.17.3", True, True, False),
        ("2.19.6", True, True, True),
    ],
)
def test_a_wrapped_program_is_asked_for_its_usage(tmp_path, release, json, cycles, per_iteration):
    """A script that sets up modules and starts the real one; what it cannot say stays unknown."""
    runpy.run_path(str(STAND_IN))["install"](tmp_path, release=release)

    def run(argv):
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=240)
        return CommandOutput(exit_code=done.returncode, stdout=done.stdout, stderr=done.stderr)

    found = detect(tmp_path, run=run, collectives=Collective)
    assert (found.json, found.cycles, found.per_iteration) == (json, cycles, per_iteration)
    assert (found.split, found.mpi) == (None, None)
    assert "usage" in found.origin


def test_a_wrapped_program_that_nobody_may_start_is_taken_for_the_least(build):
    """The table on standard output is there in every release."""
    assert detect(build(b"#!/bin/sh\nexec /opt/nccl-tests/all_reduce_perf\n")) == LEAST


def test_programs_on_the_compute_nodes_alone_are_asked_there():
    """The folder does not exist on the login node."""
    asked = []

    def run(argv):
        asked.append(argv)
        return CommandOutput(exit_code=0, stdout="USAGE: x\n\t[-b,--minbytes <n>]\n\t[-J,--output_file <f>]")

    assert detect(Path("/only/there"), run=run).json
    assert asked == [("/only/there/all_reduce_perf", "-h")]


def test_a_program_that_cannot_run_stops_before_the_study(subtests):
    """With what to do about it."""
    missing = "cannot open shared object file: No such file or directory"
    cases = [
        (127, "sh: 1: all_reduce_perf: not found", "cannot find nccl-tests"),
        (None, "cannot start x: No such file or directory", "cannot find nccl-tests"),
        (2, "slurmstepd: error: execve(): x: No such file", "cannot find nccl-tests"),
        (126, f"x: error while loading shared libraries: libnccl.so.2: {missing}", "does not start .*libnccl"),
        (0, "hello", "does not start"),
    ]
    for exit_code, printed, reason in cases:
        output = CommandOutput(exit_code=exit_code, stdout="", stderr=printed)
        with subtests.test(output=output):
            with pytest.raises(UsageError, match=reason) as caught:
                detect(Path("/only/there"), run=lambda _argv, output=output: output)
            assert caught.value.hint


def test_every_program_of_the_workload_has_to_be_there(build):
    """Found now and not after an hour, when the second collective is launched."""
    with pytest.raises(UsageError, match="alltoall_perf"):
        detect(build(NEWEST), collectives=[Collective.ALL_REDUCE, Collective.ALL_TO_ALL])


@pytest.mark.parametrize("folder", [Path("/nowhere"), None])
def test_missing_programs_are_named(folder, monkeypatch, tmp_path):
    """In the folder or on the PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="all_reduce_perf") as caught:
        detect(folder)
    assert "nccl-tests" in caught.value.hint


def test_a_file_that_is_no_program_does_not_count(tmp_path):
    """Without the right to execute it would fail on every launch."""
    (tmp_path / "all_reduce_perf").write_bytes(NEWEST)
    with pytest.raises(UsageError, match="all_reduce_perf"):
        detect(tmp_path)
