"""Telling MPIs apart by what their launchers print."""

import os
from contextlib import nullcontext

import pytest
from program import stand_in

from ncclt.errors import NccltError, UsageError
from ncclt.launch.launcher import JobShape
from ncclt.launch.mpi import MpiFlavour, MpirunLauncher, ask_mpi_flavour, mpi_flavour


def test_words_of_versions(subtests):
    """What is not known is nobody's."""
    cases = [
        ("mpirun (Open MPI) 4.1.4\n\nReport bugs to", MpiFlavour.OPEN_MPI),
        ("mpirun (OpenRTE) 1.10.7\n", MpiFlavour.OPEN_MPI),
        ("HYDRA build details:\n    Version: 4.0.2\n", MpiFlavour.MPICH),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.13 Build 20240515\n", MpiFlavour.INTEL_MPI),
        ("usage: mpirun", None),
    ]
    for said, flavour in cases:
        with subtests.test(said=said):
            assert mpi_flavour(said) is flavour


def test_an_unknown_launcher_is_refused(tmp_path):
    """With the names of those that are known."""
    environ = stand_in(tmp_path, mpirun="echo something else")
    with pytest.raises(UsageError) as caught:
        ask_mpi_flavour("mpirun", environ=environ)
    assert "Open MPI, MPICH, Intel MPI" in caught.value.hint


def test_a_launcher_that_is_not_there_or_does_not_start_is_told_apart(tmp_path):
    with pytest.raises(UsageError, match="mpirun was not found"):
        ask_mpi_flavour("mpirun", environ={"PATH": str(tmp_path)})
    (tmp_path / "mpirun").write_text("#!/nowhere/sh\n")
    (tmp_path / "mpirun").chmod(0o755)
    with pytest.raises(UsageError, match="--version does not work"):
        ask_mpi_flavour(str(tmp_path / "mpirun"), environ=os.environ)


def test_ranks_meet_on_the_first_node_where_it_is_known(subtests):
    cases = [
        (JobShape(), (), "127.0.0.1"),
        (JobShape(processes_per_node=8), ("n7",), "127.0.0.1"),
        (JobShape(nodes=2, hosts=("a", "b")), (), "a"),
        (JobShape(nodes=2), ("n7", "n8"), "n7"),
        (JobShape(nodes=2), (), None),
    ]
    for shape, granted, where in cases:
        with subtests.test(shape=shape):
            made = MpirunLauncher(flavour=MpiFlavour.MPICH, shape=shape, granted=granted, environment={})
            argv = made.plan(("perf",), variables={}, timeout_s=1.0).argv
            assert (argv[argv.index("MASTER_ADDR") + 1] if "MASTER_ADDR" in argv else None) == where
            assert ("-hosts" in argv) == bool(shape.hosts), "mpirun learns its nodes from the manager, ranks do not"


@pytest.mark.parametrize("shape", [JobShape(nodes=2), JobShape(nodes=2, hosts=("a", "b")), JobShape()])
def test_the_scheduler_is_asked_for_hosts_only_where_none_are_named(tmp_path, shape):
    environ = stand_in(tmp_path, mpirun="echo 'HYDRA build details:'") | {"PBS_NODEFILE": str(tmp_path / "gone")}
    asked = shape.nodes > 1 and not shape.hosts
    with pytest.raises(NccltError, match="gone") if asked else nullcontext():
        MpirunLauncher.create(shape=shape, environment=environ)
