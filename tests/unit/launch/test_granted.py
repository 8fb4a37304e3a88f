"""Which nodes a resource manager has granted."""

import pytest

from ncclt.errors import InputError
from ncclt.launch.granted import granted_hosts


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("PBS_NODEFILE", "gpu07\ngpu07\ngpu03\ngpu03\n"),
        ("LSB_DJOB_HOSTFILE", "gpu07\ngpu03\n"),
        ("PE_HOSTFILE", "gpu07 8 all.q@gpu07 UNDEFINED\ngpu03 8 all.q@gpu03 UNDEFINED\n\n"),
    ],
)
def test_lists_in_files(tmp_path, variable, text):
    """Each node once, in the manager's order: rank 0 runs on the first one."""
    path = tmp_path / "nodes"
    path.write_text(text)
    assert granted_hosts({variable: str(path)}) == ("gpu07", "gpu03")


def test_lists_in_variables(tmp_path):
    """Slurm goes before a list that an outer manager has left behind."""
    assert granted_hosts({"LSB_MCPU_HOSTS": "gpu07 8 gpu03 8"}) == ("gpu07", "gpu03")
    slurm = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]", "PBS_NODEFILE": str(tmp_path / "gone")}
    assert granted_hosts(slurm) == ("n1", "n2")
    assert granted_hosts({}) == ()


def test_a_list_that_cannot_be_read(tmp_path):
    """As where the job's script runs on another machine than its nodes."""
    with pytest.raises(InputError, match="PBS_NODEFILE"):
        granted_hosts({"PBS_NODEFILE": str(tmp_path / "gone")})
