"""A study as one batch job: the script that is submitted, and what becomes of it."""

import subprocess
from pathlib import Path

import pytest
from program import stand_in

from ncclt.errors import UsageError
from ncclt.launch.launcher import JobShape
from ncclt.launch.slurm.sbatch import BatchRequest, node_local_folder, plan_batch, submit, submit_and_follow

MOUNTS = """\
rootfs / ext4 rw 0 0
tmpfs /dev/shm tmpfs rw 0 0
nas:/home /home nfs4 rw 0 0
scratch /lustre lustre rw 0 0
/dev/nvme0 /lustre/local\\040disk xfs rw 0 0
"""

GOLDEN = Path(__file__).resolve().parents[3] / "golden" / "slurm"
COMMAND = ("/home/ana/venv/bin/python", "-m", "ncclt", "tune", "--model", "bert", "--study", "it's mine; $x", "--json")


def request(**changes):
    known = {
        "command": COMMAND,
        "shape": JobShape(nodes=2, processes_per_node=8),
        "gpus_per_node": 8,
        "time_limit": "2:00:00",
        "job_name": "ncclt-bert",
        "folder": Path("/home/ana/my studies"),
        "extra": ("--partition=gpu", "--account=ab#c"),
        "variables": (("NCCLT_STORAGE", "sqlite:////home/ana/my studies/ncclt.db"),),
        "comment": "ncclt 0123456789ab",
    }
    return BatchRequest(**{**known, **changes})


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("study", {}),
        (
            "study_plain",
            {
                "gpus_per_node": None,
                "time_limit": None,
                "extra": (),
                "variables": (),
                "comment": "",
                "folder": Path("/home/ana"),
                "shape": JobShape(nodes=2, hosts=("n1", "n2")),
            },
        ),
    ],
)
def test_golden_script(name, changes, check_golden):
    """The script is pinned; run once with NCCLT_UPDATE_GOLDEN=1 after a wanted change, and read the difference."""
    plan = plan_batch(request(**changes))
    check_golden(GOLDEN / f"{name}.sbatch", f"{plan.script}# submitted by: {plan.argv}\n")


def test_whole_nodes_are_asked_for_unless_told_otherwise(subtests):
    """Studies that share nodes measure each other."""
    cases = ["--exclusive=user", "--oversubscribe", "-s", "--share"]
    for told in cases:
        with subtests.test(told=told):
            assert "#SBATCH --exclusive\n" in plan_batch(request()).script
            assert "--exclusive" not in plan_batch(request(extra=(told,))).script


def test_the_command_line_survives_the_shell(tmp_path):
    """The batch shell runs the very words that were given."""
    words = ("printf", "%s\\n", "it's mine; $x", "a b", "", "*")
    plan = plan_batch(request(command=words))
    done = subprocess.run(("bash", "-c", plan.script), capture_output=True, text=True, timeout=240, cwd=tmp_path)
    assert done.stdout == "it's mine; $x\na b\n\n*\n"


def test_the_id_of_the_job_is_returned(tmp_path):
    environment = stand_in(tmp_path, sbatch=f'cat >"{tmp_path}/script"; echo "$@" >"{tmp_path}/argv"; echo "42;lab"')
    plan = plan_batch(request())
    assert submit(plan, environment=environment) == "42"
    assert (tmp_path / "script").read_text() == plan.script
    assert (tmp_path / "argv").read_text() == "--parsable --partition=gpu --account=ab#c\n"
    assert plan.logs("42")[0] == "/home/ana/my studies/ncclt-bert-42.out"


def test_a_refusal_is_told_in_the_words_of_sbatch(tmp_path):
    environment = stand_in(
        tmp_path, sbatch="echo 'sbatch: error: invalid partition specified: gpu' >&2; cat >/dev/null; exit 1"
    )
    with pytest.raises(UsageError, match="invalid partition specified: gpu"):
        submit(plan_batch(request()), environment=environment)


def test_no_sbatch_means_no_login_node(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="sbatch is not installed here"):
        submit(plan_batch(request()), environment={"PATH": str(tmp_path)})


def test_without_waiting_the_job_is_named_and_left(tmp_path):
    environment = stand_in(tmp_path, sbatch="cat >/dev/null; echo 42")
    said = []
    assert submit_and_follow(request(), wait=False, show=said.append, say=said.append, environment=environment) == 0
    assert said == ["ncclt: submitted job 42; its output: /home/ana/my studies/ncclt-bert-42.out\n"]


def test_the_innermost_mount_decides(subtests):
    cases = [
        ("/tmp/ncclt.db", "is on / (ext4)"),
        ("/dev/shm/ncclt.db", "is on /dev/shm (tmpfs)"),
        ("/home/ana/ncclt.db", ""),
        ("/lustre/x/ncclt.db", ""),
        ("/lustre/local disk/ncclt.db", "is on /lustre/local disk (xfs)"),
        ("/lustre/localx/ncclt.db", ""),
    ]
    for path, where in cases:
        with subtests.test(path=path):
            said = node_local_folder(Path(path), mounts=MOUNTS)
            assert where in said
            assert bool(said) == bool(where)


def test_this_machine_can_be_asked():
    assert isinstance(node_local_folder(Path("/")), str)


def test_nothing_is_said_of_what_is_not_known():
    assert node_local_folder(Path("/home/ana/ncclt.db"), mounts="") == ""
