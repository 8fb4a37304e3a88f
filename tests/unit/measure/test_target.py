"""Where trials run and why there; nothing that was asked for is passed over in silence."""

from pathlib import Path

import pytest
from program import stand_in

from ncclt.errors import UsageError
from ncclt.measure.target import DEFAULT_RECORDED, Target


def choose(requested="", *, landscape=False, environ=None, gpus=False, cluster=None, demo=True):
    target = Target(launcher=requested, landscape=Path("recorded.csv") if landscape else None, cluster=cluster)
    return target.resolved(environ or {}, gpus_visible=lambda: gpus, demo=demo)


def test_the_launcher_is_chosen_and_the_reason_said(subtests):
    cases = [
        ({}, "replay", "no GPU or Slurm allocation found"),
        ({"cluster": "l40s-1x4", "gpus": True}, "replay", "l40s-1x4 is a recorded cluster"),
        ({"cluster": "l40s-1x4", "requested": "simulate"}, "simulate", "as requested"),
        ({"gpus": True}, "local", "found GPUs on this machine"),
        ({"landscape": True, "gpus": True}, "replay", "landscape given"),
        ({"requested": "simulate", "gpus": True, "environ": {"SLURM_JOB_ID": "7"}}, "simulate", "as requested"),
        ({"gpus": True, "environ": {"SLURM_JOB_ID": "7"}}, "slurm", "found Slurm allocation 7"),
    ]
    for given, name, reason in cases:
        with subtests.test(given=given):
            target = choose(**given)

            assert (target.launcher, target.reason) == (name, reason)


@pytest.mark.parametrize("cluster", [None, "leonardo"])
def test_a_workload_of_ones_own_is_replayed_or_simulated_only_on_request(cluster):
    with pytest.raises(UsageError, match="cannot measure here: no GPU or Slurm allocation found") as refused:
        choose(cluster=cluster, demo=False)
    assert "as a demonstration" in refused.value.hint
    assert choose(cluster="mi355x-2x8", demo=False).launcher == "replay"
    assert choose("simulate", cluster=cluster, demo=False).launcher == "simulate"


def test_on_a_login_node_the_reason_names_the_launcher_that_measures(tmp_path):
    stand_in(tmp_path, sbatch="")
    target = choose(environ={"PATH": str(tmp_path)})

    assert target.launcher == "replay"
    assert target.reason == "no GPU or Slurm allocation found (--launcher slurm submits jobs from here)"


def test_gloo_runs_on_the_cpus_of_this_machine_without_a_launcher_named():
    for gpus in (False, True):
        target = Target(cluster="leonardo", nodes=1, backend="gloo")
        assert target.resolved({}, gpus_visible=lambda seen=gpus: seen, demo=False).launcher == "torchrun"
    with pytest.raises(UsageError, match="--backend does not apply to recorded times"):
        Target(cluster="l40s-1x4", backend="gloo").resolved({}, gpus_visible=lambda: False)


def test_an_unknown_launcher_is_refused_with_those_that_are_known():
    with pytest.raises(UsageError, match="unknown launcher 'slum'") as refused:
        choose("slum")
    assert "slurm" in refused.value.hint


def test_what_means_nothing_is_refused(subtests):
    cases = [
        ({"beside": "gemm"}, "--beside does not apply to simulated times"),
        ({"backend": "gloo"}, "--backend does not apply"),
        ({"nccl_tests": Path("build")}, "--nccl-tests does not apply"),
        (
            {"launcher": "replay", "landscape": Path("x.csv"), "parallel": 2},
            "--parallel does not apply to recorded times",
        ),
        ({"launcher": "local", "landscape": Path("x.csv")}, "--landscape is replayed"),
        ({"launcher": "replay", "cluster": "leonardo"}, "leonardo is not a recorded cluster"),
        ({"parallel": 0}, "at least 1"),
    ]
    for given, said in cases:
        with subtests.test(given=given):
            target = Target(**({"launcher": "simulate"} | given))
            with pytest.raises(UsageError, match=said):
                target.resolved({})


@pytest.mark.parametrize("given", [{"launcher": "simulate", "parallel": 4}, {"launcher": "torchrun", "beside": "gemm"}])
def test_what_means_something_is_taken(given):
    assert Target(**given).resolved({}).launcher == given["launcher"]


def test_hosts_come_from_a_file_as_well(tmp_path):
    (tmp_path / "hosts").write_text("# rack 1\na slots=8\nme@b:2222\n")
    target = Target(launcher="ssh", hosts=(f"@{tmp_path / 'hosts'}",)).resolved({})
    assert target.hosts == ("a", "me@b:2222")
    assert target.host_slots == (("a", 8),)


def test_what_is_replayed_unasked_is_the_default_recording():
    assert choose().cluster == choose("replay").cluster == DEFAULT_RECORDED
    assert choose(gpus=True).cluster is None


@pytest.mark.parametrize(
    ("given", "for_nodes"), [({"cluster": "leonardo"}, False), ({"cluster": "l40s-1x4"}, True), ({}, True)]
)
def test_nothing_is_simulated_unasked(given, for_nodes):
    """One rule for all commands that measure; the hint followed to the letter is accepted."""
    with pytest.raises(UsageError, match="cannot measure here: no GPU or Slurm allocation found") as refused:
        Target(**given).resolved({}, gpus_visible=lambda: False, for_nodes=for_nodes)

    assert "--launcher simulate" in refused.value.hint
    asked = Target(**given, launcher="simulate").resolved({}, gpus_visible=lambda: False, for_nodes=for_nodes)
    assert asked.launcher == "simulate"


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ({"cluster": ""}, "--cluster needs a name"),
        ({"cluster": " "}, "--cluster needs a name"),
        ({"hosts": "a,b"}, "hosts are several names, not the text 'a,b'"),
    ],
)
def test_an_empty_cluster_is_not_the_default_and_one_text_no_list_of_hosts(field, words):
    with pytest.raises(UsageError, match=words):
        Target(**field)


@pytest.mark.parametrize("for_nodes", [False, True])
def test_launcher_options_that_cannot_apply_are_refused_in_every_command(for_nodes):
    """Bad ones too, before anything runs; options of a batch job only where one is submitted."""
    for given, said in (
        ({"launcher": "simulate", "launcher_option": ("a=b",)}, "--launcher-option does not apply to simulated"),
        ({"launcher": "ssh", "launcher_option": ("container=i",)}, "--launcher ssh has no option 'container=i'"),
        ({"launcher": "slurm", "launcher_option": ("time-limit=abc",)}, "'time-limit=abc': not a time of Slurm"),
        ({"launcher": "slurm", "launcher_option": ("sbatch-arg=-pgpu",)}, "submits no batch job"),
    ):
        target = Target(**given)
        with pytest.raises(UsageError, match=said):
            target.resolved({}, for_nodes=for_nodes, submits="no batch job" not in said)
    job = Target(launcher="slurm", launcher_option=("sbatch-arg=-pgpu", "time-limit=5"))
    assert job.resolved({}, submits=True).launcher_options == {"sbatch_arg": ("-pgpu",), "time_limit": "5"}
