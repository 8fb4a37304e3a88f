"""Telling MPIs apart by what their launchers print."""

import os

import pytest

from ncclt.errors import UsageError
from ncclt.launch.mpi import MpiFlavour, ask_mpi_flavour, mpi_flavour


@pytest.mark.parametrize(
    ("said", "flavour"),
    [
        ("mpirun (Open MPI) 4.1.4\n\nReport bugs to", MpiFlavour.OPEN_MPI),
        ("mpirun (OpenRTE) 1.10.7\n", MpiFlavour.OPEN_MPI),
        ("HYDRA build details:\n    Version: 4.0.2\n", MpiFlavour.MPICH),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.13 Build 20240515\n", MpiFlavour.INTEL_MPI),
        ("usage: mpirun", None),
    ],
)
def test_words_of_versions(said, flavour):
    """What is not known is nobody's."""
    assert mpi_flavour(said) is flavour


def test_an_unknown_launcher_is_refused(tmp_path):
    """With the names of those that are known."""
    program = tmp_path / "mpirun"
    program.write_text("#!/bin/sh\necho something else\n")
    program.chmod(0o755)
    with pytest.raises(UsageError) as caught:
        ask_mpi_flavour(str(program), environ=os.environ)
    assert "Open MPI, MPICH, Intel MPI" in caught.value.hint
