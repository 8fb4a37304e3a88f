"""The base installation alone: without SQLAlchemy, numpy, Optuna and PyTorch what is shipped can be read."""

import subprocess
import sys

import pytest

from ncclt.store import open_to_read

H100 = ("--cluster", "dgx-h100", "--nodes", "2")
DEGRADED = 4
ABSENT = ("sqlalchemy", "alembic", "numpy", "scipy", "optuna", "torch", "fastapi")


@pytest.fixture
def base(tmp_path):
    """Return a caller of the command line of an installation without any extra."""

    def run(*words):
        code = f"import sys; sys.modules.update(dict.fromkeys({ABSENT})); from ncclt.cli import main; main()"
        environ = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
        return subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, env=environ)

    return run


def test_what_needs_no_store_runs_without_the_extra(base, subtests):
    for words, said in [
        (("--help",), "cluster"),
        (("profile", "list"), "bert"),
        (("cluster", "show", "dgx-h100", "--toml"), 'nic_gbps = "50 GB/s"'),
        (("advise", "--model", "bert", *H100, "--step-ms", "300", "--compute-ms", "250"), "bucket_cap_mb"),
        (("upgrade", *H100[:2], "--from", "2.27.3", "--to", "2.28.3"), "no recommendation for"),
        (("preflight", *H100, "--launcher", "ssh", "--hosts", "a,b", "--dry-run"), "launch 1: all_reduce"),
        (("preflight", "--history"), "verdict"),
        (("studies", "list"), "model"),
    ]:
        with subtests.test(words=words):
            done = base(*words)

            assert (done.returncode, done.stderr) in ((0, ""), (DEGRADED, ""))
            assert said in done.stdout


def test_an_unknown_name_has_the_usual_hint(base):
    done = base("cluster", "show", "leonard")

    assert done.returncode == 3
    assert "did you mean leonardo?" in done.stderr


@pytest.mark.parametrize(
    "words", [("admin", "recommendations", "list"), ("cluster", "list", "--storage", "postgresql://u@h/d")]
)
def test_what_needs_a_store_says_what_to_install(base, words):
    done = base(*words)

    assert done.returncode == 1
    assert "pip install 'ncclt[store]'" in done.stderr


def test_both_ways_read_the_same(base):
    with open_to_read() as store:
        names = [cluster.name for cluster, shipped in store.clusters.entries() if shipped]
    listed = base("cluster", "list").stdout

    assert [name for name in names if name not in listed] == []
