"""The shell before a rank: the command starts where the environment is as planned, and nowhere else."""

import shutil
import subprocess

import pytest

from ncclt.launch.ranks import UNFIT_CODE, find_unfit_reason, is_deciding, strip_signs, wrap_rank_command
from ncclt.nccl.parameters import CATALOGUE, SET_BY_RULES

VALUE = "allreduce:ring,tree;broadcast:ring 'x' \"y\" $HOME `id` \\"
PLANNED = {"NCCL_ALGO": VALUE, "NCCL_IB_HCA": "=mlx5_0", "OMP_NUM_THREADS": "1"}

CASES = {
    "as planned": (PLANNED, ""),
    "the site's network": (PLANNED | {"NCCL_IB_TC": "106", "NCCL_SOCKET_IFNAME": "ib0", "NCCL_IB_HCA": "mlx5_1"}, ""),
    "a version of an image": (PLANNED | {"NCCL_VERSION": "2.28.9-1", "NCCLT_LAUNCH": "mark"}, ""),
    "part of another value": (PLANNED | {"OTHER": "x\nNCCL_PROTO=LL\ny"}, ""),
    "foreign": (PLANNED | {"NCCL_TUNER_PLUGIN": "/a b.so"}, "unexpected NCCL_TUNER_PLUGIN=/a b.so on "),
    "two": (PLANNED | {"NCCL_PROTO": "LL", "NCCLT_POLICY_SHM": "/x"}, ("NCCL_PROTO=LL", "NCCLT_POLICY_SHM=/x")),
    "empty": (PLANNED | {"NCCL_MAX_CTAS": ""}, "unexpected NCCL_MAX_CTAS= on "),
    "changed": (PLANNED | {"NCCL_ALGO": "Tree"}, "unexpected NCCL_ALGO=Tree on "),
    "removed": ({"NCCL_IB_HCA": "=mlx5_0"}, "unexpected NCCL_ALGO= on "),
}


@pytest.mark.parametrize("shell", ["dash", "bash"])
def test_a_rank_starts_where_its_environment_is_as_planned(shell, subtests):
    """Names and values; nothing in a value is run."""
    if (path := shutil.which(shell)) is None:
        pytest.skip(f"{shell} is not installed here")
    argv = wrap_rank_command(("printf", "%s|", "ran", "a b", "--", "$x"), PLANNED)
    for name, (environ, words) in CASES.items():
        done = subprocess.run(
            (path, *argv[1:]), env={"PATH": "/usr/bin:/bin", **environ}, capture_output=True, text=True, timeout=60
        )
        with subtests.test(name=name):
            if not words:
                assert (done.returncode, done.stdout, done.stderr) == (0, "ran|a b|--|$x|", "ncclt: started\n")
            else:
                assert (done.returncode, done.stdout) == (UNFIT_CODE, "")
                reason = find_unfit_reason(done.stderr)
                assert all(word in reason for word in ((words,) if isinstance(words, str) else words)), done.stderr


def test_signs_of_ranks_are_removed_however_a_launcher_marks_its_lines(subtests):
    cases = [
        ("one\nncclt: started\ntwo\n", "one\ntwo\n"),
        ("[1,0]<stderr>:ncclt: started\n[1,0]<stderr>:two\n", "[1,0]<stderr>:two\n"),
        ("0: ncclt: started\n1: ncclt: started\n", ""),
        ("words of two ncclt: started\nranks\n", "words of two ranks\n"),
        ("it has ncclt: restarted\n", None),
    ]
    for text, rest in cases:
        with subtests.test(text=text):
            assert strip_signs(text) == ((text, False) if rest is None else (rest, True))


def test_all_that_a_policy_or_a_search_may_set_decides():
    """Whoever adds a parameter to the search adds it here."""
    ours = [row.variable for row in CATALOGUE if row.safe or row.name in SET_BY_RULES]
    assert [name for name in ours if not is_deciding(name)] == []
    site = [row.variable for row in CATALOGUE if "the site's" in row.note]
    assert [name for name in site if is_deciding(name)] == []
