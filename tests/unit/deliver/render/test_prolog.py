"""The TaskProlog with a table: whatever a folder is called, it stays one path and runs nothing."""

import shutil
import subprocess

import pytest

from ncclt.deliver.render.prolog import table_prolog
from ncclt.errors import SettingError

HOSTILE = ["it's", 'a "b"', "$(touch ran)", "`touch ran`", "a;touch ran", "a b", "%s%d\\n", "-n", "${HOME}", "*", "\\"]


def prolog(folder, name):
    path = f"{folder}/{name}"
    return table_prolog(
        {"model": name, "nodes": 2, "gpus_per_node": 4},
        {"NCCLT_POLICY": path},
        ["# ncclt"],
        uid=None,
        rivals=["NCCL_ALGO"],
        needed=[path],
        report=path,
    )


@pytest.mark.parametrize("shell", ["bash", "dash"])
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_handed_on_as_they_are(tmp_path, shell, name):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed here")

    step = {"SLURM_STEP_NUM_NODES": "2", "SLURM_GPUS_ON_NODE": "4", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}

    def said():
        done = subprocess.run(
            [shutil.which(shell), "-c", prolog(tmp_path, name)],
            cwd=tmp_path,
            timeout=240,
            check=False,
            env={**step, "NCCLT_MODEL": name},
            capture_output=True,
            text=True,
        )
        assert done.stderr == ""
        return done.returncode, done.stdout.splitlines()

    lacking = (1, [f"print ncclt: {tmp_path}/{name} cannot be read on this node, so the task does not start"])
    assert said() == lacking
    (tmp_path / name).touch()
    assert said() == (
        0,
        [f"export NCCLT_POLICY={tmp_path}/{name}", f"export NCCLT_PLUGIN_REPORT={tmp_path}/{name}/7.0.0"],
    )
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("name", ["a\nexport LD_PRELOAD=x", "a\x1b[31m"])
def test_control_characters_are_refused(tmp_path, name):
    with pytest.raises(SettingError, match="control character"):
        prolog(tmp_path, name)
