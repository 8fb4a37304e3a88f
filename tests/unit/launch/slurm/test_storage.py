"""A store that compute nodes cannot see is noticed before the job is submitted."""

from pathlib import Path

import pytest

from ncclt.launch.slurm.storage import node_local_folder

MOUNTS = """\
rootfs / ext4 rw 0 0
tmpfs /dev/shm tmpfs rw 0 0
nas:/home /home nfs4 rw 0 0
scratch /lustre lustre rw 0 0
/dev/nvme0 /lustre/local\\040disk xfs rw 0 0
"""


@pytest.mark.parametrize(
    ("path", "where"),
    [
        ("/tmp/ncclt.db", "is on / (ext4)"),
        ("/dev/shm/ncclt.db", "is on /dev/shm (tmpfs)"),
        ("/home/ana/ncclt.db", ""),
        ("/lustre/x/ncclt.db", ""),
        ("/lustre/local disk/ncclt.db", "is on /lustre/local disk (xfs)"),
        ("/lustre/localx/ncclt.db", ""),
    ],
)
def test_the_innermost_mount_decides(path, where):
    said = node_local_folder(Path(path), mounts=MOUNTS)
    assert where in said
    assert bool(said) == bool(where)


def test_this_machine_can_be_asked():
    assert isinstance(node_local_folder(Path("/")), str)


def test_nothing_is_said_of_what_is_not_known():
    assert node_local_folder(Path("/home/ana/ncclt.db"), mounts="") == ""
