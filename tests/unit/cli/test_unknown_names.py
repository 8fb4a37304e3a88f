"""`ncclt env` and its like where nothing was tuned: a name that nobody knows is noticed, one that is known is not."""

import subprocess
import sys
from dataclasses import replace

import pytest

from ncclt.cli.env import main as env
from ncclt.store import open_store
from ncclt.testing.samples import sample_cluster, sample_recommendation, sample_workload


@pytest.fixture
def storage(tmp_path, monkeypatch):
    """Return the options that name a store with a cluster and a workload of one's own, and one thing published."""
    monkeypatch.delenv("NCCLT_SERVER", raising=False)
    monkeypatch.delenv("NCCLT_STORAGE", raising=False)
    monkeypatch.chdir(tmp_path)
    with open_store("sqlite:///own.db") as store:
        store.clusters.add(replace(sample_cluster(), name="frontier-mini"))
        store.workloads.add(replace(sample_workload(), name="our-gpt"))
        # Its cluster and its workload are defined in another store.
        store.revisions.publish(sample_recommendation("r1"))
    return ("--storage", "sqlite:///own.db")


def ask(command, cluster, model, *words):
    return command(["--cluster", cluster, "--model", model, *words])


@pytest.mark.parametrize("command", ["env", "tune", "recheck"])
def test_an_empty_name_is_a_mistake_of_the_command(storage, command):
    """As of a variable in a job script that is not set."""
    words = [sys.executable, "-m", "ncclt", command, "--cluster", "leonardo", "--model", "", *storage]
    words += [] if command == "env" else ["--launcher", "simulate"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=240)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "ncclt: the name of the workload is empty\n  hint: `ncclt profile list` shows the names\n"


@pytest.mark.parametrize(
    ("cluster", "model", "said", "hint"),
    [
        ("leonrado", "bert", "no cluster 'leonrado' is known here", "did you mean leonardo? `ncclt cluster list`"),
        ("frontier-mimi", "bert", "no cluster 'frontier-mimi' is", "did you mean frontier-mini?"),
        ("pear", "bert", "no cluster 'pear' is known here", "did you mean pair or"),
        ("leonardo", "our-gtp", "no workload 'our-gtp' is known here", "our-gpt"),
        ("leonardo", "brt", "no workload 'brt' is known here", "did you mean bert? `ncclt profile list` lists all"),
        ("xyzzy", "bert", "no cluster 'xyzzy' is known here", "hint: `ncclt cluster list` lists all"),
        ("leonardo", "toy", "nothing has been tuned for toy on leonardo\n", "ncclt tune --model toy --cluster"),
        ("pair", "bert", "nothing has been tuned for bert on pair\n", "ncclt tune --model bert --cluster pair"),
        (  # a recording has one shape, and this job may have another
            "h100-1x4",
            "bert",
            "nothing has been tuned for bert on h100-1x4\n",
            "run `ncclt tune --model bert --cluster h100-1x4` to replay what was recorded there",
        ),
        ("frontier-mini", "our-gpt", "nothing has been tuned for our-gpt on", "ncclt tune --model our-gpt"),
    ],
)
def test_a_name_that_nobody_knows_is_noticed(storage, capsys, cluster, model, said, hint):
    assert ask(env, cluster, model, *storage) == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert hint in err


def test_what_was_published_is_served_without_its_definitions(storage, capsys):
    shape = ("--nodes", "2", "--gpus-per-node", "4", "--nccl-version", "2.28.9")
    assert ask(env, "pair", "toy", *shape, *storage) == 0
    assert "NCCL" in capsys.readouterr().out
    assert ask(env, "pair", "toy", "--nodes", "64", *storage) == 3
    assert "no recommendation for toy on pair fits" in capsys.readouterr().err


def test_where_there_is_no_store_yet_the_shipped_names_are_known(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert ask(env, "leonardo", "bert") == 3
    assert "run `ncclt tune --model bert --cluster leonardo`" in capsys.readouterr().err
    assert ask(env, "mine", "bert") == 3
    assert "--storage or --server name another store" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_job_starts_all_the_same(storage):
    def ncclt(words):  # a process of its own, for it becomes the job
        return subprocess.run(
            [sys.executable, "-m", "ncclt", "run", *words], capture_output=True, text=True, timeout=60
        )

    done = ask(ncclt, "leonrado", "bert", *storage, "--", "echo", "it trains")
    assert (done.returncode, done.stdout) == (0, "it trains\n")
    assert "did you mean leonardo?" in done.stderr


@pytest.mark.parametrize("name", ["tune", "recheck", "autotune"])
def test_a_mistyped_name_is_refused_before_what_the_machine_lacks(storage, tmp_path, monkeypatch, name):
    """No launcher is given and cannot measure here; a wrong word is refused without a store, too."""
    from typer.testing import CliRunner

    from ncclt.cli.application import app

    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    def refusal(*words):
        return CliRunner().invoke(app, [name, *words]).output

    for place in (storage, ("--storage", "sqlite:///new.db")) if name != "recheck" else (storage,):
        assert refusal("--model", "our-gtp", *place).startswith("ncclt: there is no workload 'our-gtp'\n")
    assert not (tmp_path / "new.db").exists()
    benchmark = (("--benchmark", "ncl_tests"),) if name != "autotune" else ()
    for option, word in (("--launcher", "slum"), *benchmark):
        wrong = refusal("--model", "our-gtp", option, word, "--storage", "sqlite:///new.db")
        assert wrong.startswith(f"ncclt: unknown {option[2:]} {word!r}\n")
        assert not (tmp_path / "new.db").exists()
