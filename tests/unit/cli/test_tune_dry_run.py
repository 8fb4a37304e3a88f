"""`ncclt tune --dry-run` of persistent ranks: what it says is what would be done, and it holds no secret."""

import json
import re
from dataclasses import replace

import pytest

from ncclt.cli.tune import tune
from ncclt.core.message import Collective, Message
from ncclt.core.workload import MessageCalls
from ncclt.errors import UsageError
from ncclt.testing.samples import sample_cluster, sample_workload


def _read(command, *words):
    command.store.workloads.add(sample_workload(), replace=True)
    command.store.clusters.add(replace(sample_cluster(), nodes=2, gpus_per_node=8), replace=True)
    cluster, workload = sample_cluster().name, sample_workload().name
    return command(tune, "--model", workload, "--cluster", cluster, "--nodes", "2", "--dry-run", *words)


@pytest.mark.usefixtures("open_mpi")
@pytest.mark.parametrize(
    "words",
    [
        ("ssh", "--hosts", "a,b"),
        ("mpirun", "--hosts", "a,b"),
        ("kubernetes", "--benchmark", "torch_collectives", "--launcher-option", "container=image"),
    ],
)
def test_a_dry_run_fits_on_a_screen_and_says_how_large_its_files_are(command, words):
    """A launch over ssh carries 36 KiB of Python, shown on request."""
    screen = _read(command, "--launcher", *words)
    assert len(screen.splitlines()) <= 45
    assert max(map(len, screen.splitlines())) < 800
    files = dict(re.findall(r"^  file (\S+): (\d+) lines, ", screen, re.MULTILINE))
    assert files or words[0] == "mpirun"
    assert screen.endswith("--verbose shows the files and whole commands\n")
    assert all(line.count("the same command") <= 1 for line in screen.splitlines())


@pytest.fixture
def planned(command, tmp_path, monkeypatch):
    """Plan a study on this machine, with a tuner plugin or without."""
    cluster, workload = replace(sample_cluster(), gpus_per_node=8), sample_workload()
    command.store.clusters.add(cluster)
    command.store.workloads.add(workload)
    (plugin := tmp_path / "libnccl-tuner-ncclt.so").touch()

    def call(*words, built=True):
        monkeypatch.setenv("NCCLT_PLUGIN", str(plugin if built else tmp_path / "gone"))
        printed = command(
            tune,
            "--model",
            workload.name,
            "--cluster",
            cluster.name,
            *("--nodes", "1", "--launcher", "torchrun", "--dry-run", "--json"),
            *words,
        )
        assert not re.search(r"\b[0-9a-f]{64}\b|--token", printed)
        return json.loads(printed)

    return call


def test_options_of_a_process_group_leave_channels_to_search(planned):
    there = planned("--through", "options")

    assert there["settings"] == 11
    assert [why.partition(": ")[2] for why in there["left_out"]] == ["options of a process group carry channels alone"]


def test_ranks_that_stay_are_shown_to_start_once(planned):
    (launch,) = planned("--persistent")["launches"]
    assert launch["setting"] == "default"
    assert launch["argv"][launch["argv"].index("--controller") + 1] == "HOST:PORT"
    assert len(planned("--through", "plugin")["launches"]) == 2


def test_the_launches_of_todays_settings_are_shown(planned, monkeypatch):
    """They are a third arm of the A/B test, with the user's own tuning in the environment."""
    monkeypatch.delenv("NCCL_PROTO", raising=False)
    assert "today" not in [launch["setting"] for launch in planned()["launches"]]
    monkeypatch.setenv("NCCL_PROTO", "Simple")
    for words in ((), ("--persistent",), ("--through", "variables")):
        shown = {launch["setting"]: launch for launch in planned(*words)["launches"]}

        assert "NCCL_PROTO" in shown["default"]["unset_env"]
        assert "NCCL_PROTO" not in shown["today"]["unset_env"], words


def test_what_is_measured_in_another_way_is_another_study(planned):
    names = {
        planned(*words)["study"]
        for words in (
            (),
            ("--through", "variables"),
            ("--through", "options"),
            ("--persistent",),
            ("--persistent", "--through", "variables"),
        )
    }
    assert len(names) == 5
    assert planned()["study"] == planned("--through", "plugin")["study"], "it is the default where it is found"
    assert planned("--persistent", built=False)["study"] in names, "nothing but the way counts"


def test_more_channels_than_nccl_opens_are_searched_beside_compute_alone(planned):
    """Alone they always look better: what they take from compute shows beside it."""
    with pytest.raises(UsageError, match=r"MIN_CTAS is not searched.*--beside gemm"):
        planned("--process-wide", "MIN_CTAS")

    there = planned("--process-wide", "MIN_CTAS", "--beside", "gemm", "--benchmark", "torch_collectives")

    assert "MIN_CTAS" in there["parameters"]
    assert there["study"] != planned("--beside", "gemm", "--benchmark", "torch_collectives")["study"]
    assert not any("MIN_CTAS" in said for said in planned("--through", "variables")["first"])


def test_the_sampler_is_shown_and_a_bad_one_refused_before_anything_is_made(planned):
    assert "sampler" not in planned()
    shown = planned("--sampler", "optuna.samplers:TPESampler")
    assert shown["sampler"] == "optuna.samplers:TPESampler"
    assert shown["study"].endswith("-TPESampler")
    with pytest.raises(UsageError, match="has no Nothing"):
        planned("--sampler", "optuna.samplers:Nothing")


def test_sizes_that_the_benchmark_cannot_send_are_named_before_anything_is_launched(command, planned):
    message = Message(collective=Collective.ALL_GATHER, dtype="bfloat16", size_bytes=67_108_944)
    calls = (MessageCalls(message=message, calls_per_step=1.0),)
    command.store.workloads.add(replace(sample_workload(), name="sharded", messages=calls))
    (note,) = (one for one in planned("--model", "sharded", "--launcher", "local")["notes"] if "nearest size" in one)
    assert "all_gather of 67,108,944 B at 67,108,992 B; the exact size can be slower" in note
    torch = planned("--model", "sharded", "--benchmark", "torch_collectives", built=False)
    assert not any("nearest size" in one for one in torch["notes"])
    (default, *_) = torch["launches"]
    assert "all_gather:bfloat16:4194309:8" in str(default), "exact"
    assert "all_gather:bfloat16:4194312:8" in str(default), "padded"
