"""`ncclt env` with its formats: shells, undoing, files, and what goes to stderr."""

import os
import stat
from dataclasses import replace

import pytest

from ncclt.cli import env
from ncclt.client.answer import GROUP_FORMS
from ncclt.core.algorithms import Algorithm, Protocol
from ncclt.core.message import Collective
from ncclt.core.policy import Policy, Rule
from ncclt.deliver.render.formats import FORMATS, TABLE_FORMATS
from ncclt.testing.samples import sample_cluster, sample_recommendation, sample_study, sample_workload

RING = Policy(
    rules=(Rule(collective=Collective.ALL_REDUCE, algorithm=Algorithm.RING, protocol=Protocol.SIMPLE, channels=4),)
)


@pytest.fixture
def ask(command, capsys):
    """Return a caller of `ncclt env`, which gives its exit code, stdout and stderr."""
    study = sample_study()
    found = sample_recommendation("r1", cluster=study.cluster.name, model=study.workload.name)
    found = replace(found, variables=replace(found.table, policy=RING))
    command.store.clusters.add(sample_cluster())
    command.store.workloads.add(sample_workload())
    command.store.studies.open(study)
    command.store.revisions.publish(found)

    def call(*words):
        names = (
            "--cluster",
            found.cluster,
            "--model",
            found.model,
            *("--nodes", "2", "--gpus-per-node", "4", "--nccl-version", "2.28.9"),
        )
        code = env.main([*names, "--storage", command.url, *words])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return call


def test_shells_and_undoing_reach_the_renderer(ask):
    assert "export NCCL_ALGO=" in ask()[1]
    assert "set -gx NCCL_ALGO '" in ask("--shell", "fish")[1]
    code, undo, _ = ask("--shell", "csh", "--unset")

    assert code == 0
    assert "unsetenv NCCL_ALGO;" in undo


def test_stderr_says_in_every_format_that_only_a_table_delivers_the_gain(ask):
    formats = (("--format", form) for form in FORMATS if form not in ("json", *TABLE_FORMATS, *GROUP_FORMS))
    for words in ((), ("--shell", "csh"), *formats):
        code, _, err = ask(*words)
        warning = "warning: the tuned policy, 1.10x, needs the plugin: use --format tuner-csv"
        assert (words, code, err.count(warning)) == (words, 0, 1)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--format", "yaml"), 2, "unknown format 'yaml'"),
        (("--shell", "zsh"), 2, "unknown shell 'zsh'"),
        (("--format", "json", "--unset"), 2, "need --format export"),
        (("--format", "nvidia-csv"), 2, "on one channel"),
        (("--group", "tp"), 2, "--group needs --format megatron-yaml"),
        (("--format", "megatron-yaml"), 2, "no --group for Megatron"),
        (("--format", "pg-options"), 3, "no process group was measured by itself"),
    ],
)
def test_what_makes_no_sense_prints_nothing(ask, words, code, said):
    found, out, err = ask(*words)

    assert (found, out) == (code, "")
    assert said in err
    assert "hint: " in err


def test_what_is_not_published_is_said_before_what_is_missing_to_deliver_it(ask, tmp_path, monkeypatch):
    monkeypatch.setenv("NCCLT_PLUGIN", str(tmp_path / "gone"))
    words = ("--format", "slurm-taskprolog", "--policy-dir", str(tmp_path / "none"))
    code, out, err = ask(*words, "--nodes", "3")
    assert (code, out) == (3, "")
    assert "nodes: measured with 2, asked for 3" in err
    code, _, err = ask(*words)
    assert (code, "plugin" in err) == (2, True)


def test_channels_reach_the_table_for_nvidia(ask):
    code, out, _ = ask("--format", "nvidia-csv", "--channels", "6")

    assert code == 0
    assert out.splitlines()[-1].startswith("allreduce,0,9223372036854775807,tree,ll,6,")


def test_a_file_is_replaced_whole_and_can_be_read_by_all(ask, tmp_path):
    umask = os.umask(0o077)
    try:
        wanted = tmp_path / "bert.yaml"
        wanted.write_text("old")
        code, out, _ = ask("--format", "configmap", "--output", str(wanted))
        script = tmp_path / "prolog.sh"
        ask("--format", "slurm-taskprolog", "--output", str(script))
    finally:
        os.umask(umask)

    assert (code, out) == (0, "")
    assert wanted.read_text() == ask("--format", "configmap")[1]
    assert stat.S_IMODE(wanted.stat().st_mode) == 0o644
    assert stat.S_IMODE(script.stat().st_mode) == 0o755
    assert sorted(path.name for path in tmp_path.iterdir() if path.suffix in (".yaml", ".sh")) == [
        "bert.yaml",
        "prolog.sh",
    ]


def test_a_failure_leaves_the_old_file_alone(ask, tmp_path):
    wanted = tmp_path / "bert.env"
    wanted.write_text("old")

    assert ask("--format", "nvidia-csv", "--output", str(wanted))[0] == 2
    assert wanted.read_text() == "old"
    code, _, err = ask("--output", str(tmp_path / "nowhere" / "bert.env"))
    assert code == 2
    assert "cannot be written" in err
    folder = tmp_path / "folder"
    folder.mkdir()
    assert ask("--output", str(folder))[0] == 2
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".folder")]


def test_what_was_simulated_takes_a_word_of_the_job(ask, monkeypatch):
    monkeypatch.delenv("NCCLT_ALLOW")
    code, out, err = ask()
    assert (code, out) == (3, "")
    assert "is SIMULATED, not measured there" in err
    assert "`--allow simulated`" in err
    assert ask("--allow", "recorded")[0] == 3
    code, out, err = ask("--allow", "simulated")
    assert code == 0
    assert "export NCCLT_SIMULATED=1" in out
    assert "SIMULATED" in err
    monkeypatch.setenv("NCCLT_ALLOW", "recorded, simulated")
    assert ask()[0] == 0
    monkeypatch.setenv("NCCLT_ALLOW", "all")
    code, out, err = ask()
    assert (code, out) == (2, "")
    assert "NCCLT_ALLOW is 'all'" in err
