"""Real places to measure: what fits together, and what is refused before anything starts."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from ncclt.core.algorithms import Algorithm, Protocol
from ncclt.core.message import Collective, Message
from ncclt.core.setting import DEFAULT, Setting
from ncclt.errors import UsageError
from ncclt.measure import LaunchedRunner, PersistentRunner
from ncclt.measure.open_testbed import cluster_here, launched_testbed, on_cpus
from ncclt.measure.table_runner import TableRunner
from ncclt.measure.target import Target
from ncclt.testing.samples import sample_cluster

CLUSTER = replace(sample_cluster(), nccl_version="2.27.3")
ONE = CLUSTER.sized(nodes=1)
ALL_REDUCE = frozenset({Collective.ALL_REDUCE})
NO_PLUGIN = {"PATH": "/usr/bin:/bin", "NCCLT_PLUGIN": "/nowhere/libnccl-tuner-ncclt.so"}
GLOO = {"benchmark": "torch_collectives", "backend": "gloo"}
MESSAGE = Message(collective=Collective.ALL_REDUCE, dtype="float32", size_bytes=4096, group_size=4)


@pytest.fixture
def plugin(tmp_path):
    (path := tmp_path / "libnccl-tuner-ncclt.so").touch()
    return path


@pytest.fixture
def environ(plugin):
    """An environment that names the plugin."""
    return {"PATH": "/usr/bin:/bin", "HOME": str(plugin.parent), "NCCLT_PLUGIN": str(plugin)}


def make_testbed(cluster=CLUSTER, *, environ=None, **place):
    """A testbed that finds no plugin unless its environment names one."""
    given = Target(**({"launcher": "ssh", "reason": "test", "hosts": ("a", "b")} | place))
    return launched_testbed(cluster, ALL_REDUCE, given, environ=environ or NO_PLUGIN, ask=False)


def test_what_does_not_fit_is_refused_with_a_reason(subtests):
    cases = [
        (CLUSTER, {"launcher": "torchrun", "hosts": ()}, "this machine alone, not 2 nodes"),
        (CLUSTER, {"launcher": "local", "hosts": ()}, "this machine alone, not 2 nodes"),
        (CLUSTER, {"benchmark": "nccl_tests"}, "nccl-tests across them needs MPI"),
        (ONE, {"launcher": "local", "hosts": (), "benchmark": "torch_collectives"}, "one for each GPU"),
        (ONE, {"launcher": "local", "hosts": (), "beside": "gemm"}, "--beside needs"),
        (ONE, {"launcher": "torchrun", "hosts": ("a",)}, "--hosts cannot be combined with"),
        (CLUSTER, {"host_slots": (("a", 8), ("b", 1))}, "b has slots=1 in the host file, fewer than the"),
        (CLUSTER, {"launcher": "mpirun", "host_slots": (("b", 1),)}, "b has slots=1"),
        (CLUSTER, {"launcher_option": ("container=image:1",)}, "--launcher ssh has no option 'container=image:1'"),
        (
            CLUSTER,
            {"launcher": "mpirun", "persistent": True},
            "--persistent cannot be combined with --benchmark nccl_tests",
        ),
        (CLUSTER, {"launcher": "kubernetes", "hosts": (), "persistent": True}, "--persistent cannot be combined with"),
        (CLUSTER, {"max_commands": 3}, "--max-commands does not apply to --benchmark torch_collectives"),
        (CLUSTER, {"nccl_tests": Path("/opt")}, "--nccl-tests does not apply to --benchmark torch_collectives"),
        (CLUSTER, {"through": "magic"}, "cannot be forced through 'magic'"),
        (CLUSTER, {"through": "plugin", **GLOO}, "--through plugin needs"),
        (CLUSTER, {"through": "plugin", "launcher": "mpirun"}, "--through plugin needs"),
        (CLUSTER, {"through": "plugin"}, "the tuner plugin was not found"),
        (CLUSTER, {"parallel": 2}, "need 4 nodes, 2 are named"),
        (CLUSTER, {"hosts": ("a",)}, "need 2 nodes, 1 are named"),
        (CLUSTER, {"launcher": "slurm", "hosts": (), "parallel": 2}, "need 4 nodes, none are named"),
    ]
    for cluster, place, said in cases:
        with subtests.test(cluster=cluster), pytest.raises(UsageError, match=said):
            make_testbed(cluster, **place)


def test_a_build_without_mpi_is_refused_for_several_processes(tmp_path, open_mpi):
    """Each would run a job of its own, and all of them the same GPUs."""
    (tmp_path / "all_reduce_perf").write_bytes(b"\x7fELF\x00[-b,--minbytes <n>]\x00")
    (tmp_path / "all_reduce_perf").chmod(0o755)
    with pytest.raises(UsageError, match="built without MPI") as caught:
        make_testbed(environ=NO_PLUGIN | {"PATH": open_mpi}, launcher="mpirun", nccl_tests=tmp_path)
    assert "MPI=1" in caught.value.hint


def test_trials_at_once_run_on_disjoint_nodes():
    found = make_testbed(ONE, hosts=("a", "b", "c"), parallel=3)

    runners = [found.runner, *found.others]
    hosts = [[host for host in "abc" if f"'{host}'" in str(runner.plans(DEFAULT, [MESSAGE]))] for runner in runners]
    assert len(runners) == 3
    assert len({str(runner.plans(DEFAULT, [MESSAGE])) for runner in runners}) == 3, hosts
    assert any("3 trials at once" in note for note in found.notes)


def test_the_launcher_that_is_asked_serves_the_first_runner_too(open_mpi):
    """Each one that is made asks `mpirun` for its version."""
    environ = NO_PLUGIN | {"PATH": open_mpi}
    make_testbed(ONE, environ=environ, launcher="mpirun", hosts=("a", "b"), parallel=2, **GLOO)
    assert (Path(open_mpi.partition(":")[0]) / "asked").read_text() == "asked\n" * 2


LL128 = Setting(algorithm=Algorithm.RING, protocol=Protocol.LL128)


def test_persistent_ranks_search_and_fresh_ones_of_the_same_kind_confirm(plugin, environ):
    """What the plugin alone can say, fresh ranks must hear from it as well."""
    found = make_testbed(persistent=True, environ=environ)

    (searching,) = found.searching
    assert isinstance(searching, PersistentRunner)
    assert isinstance(found.runner, PersistentRunner)
    assert found.expressible(LL128)
    assert any(str(plugin) in note for note in found.notes)


def test_without_the_plugin_variables_force_settings(tmp_path):
    """LL128 cannot be forced by them."""
    environ = {"PATH": "/usr/bin:/bin", "NCCLT_PLUGIN": str(tmp_path / "gone")}
    for persistent in (False, True):
        found = make_testbed(persistent=persistent, environ=environ)
        assert isinstance(found.runner, LaunchedRunner)
        assert len(found.persistent) == persistent
        assert not found.expressible(LL128)
        assert any("ncclt admin plugin build" in note for note in found.notes) is persistent


def test_the_plugin_can_force_settings_in_launches_too_and_be_left_out_of_persistent_ranks(plugin, environ):
    launched = make_testbed(ONE, hosts=("a", "b"), parallel=2, through="plugin", environ=environ)
    assert launched.expressible(LL128)
    assert not launched.persistent
    assert {type(runner) for runner in launched.searching} == {PersistentRunner}
    told = [str(runner.plans(DEFAULT, [MESSAGE])) for runner in (launched.runner, launched.by_variables)]
    assert [str(plugin) in plan for plan in told] == [True, False], "variables are proven by variables"
    by_variables = make_testbed(persistent=True, through="variables", environ=environ)
    assert by_variables.by_variables is None
    assert not by_variables.expressible(LL128)
    assert isinstance(by_variables.runner, LaunchedRunner)


def test_nccl_tests_are_forced_by_a_table_if_told_to(tmp_path, open_mpi, plugin, environ):
    environ |= {"PATH": open_mpi, "NCCLT_DELEGATE": "vendor"}
    asked = {"launcher": "mpirun", "scratch": tmp_path, "environ": environ}
    found = make_testbed(**asked, through="plugin")
    told = [str(runner.plans(DEFAULT, [MESSAGE])) for runner in (found.runner, found.by_variables)]

    assert isinstance(found.runner, TableRunner)
    assert found.expressible(LL128)
    assert type(found.by_variables) is LaunchedRunner
    assert [str(plugin) in plan and "NCCLT_DELEGATE=vendor" in plan for plan in told] == [True, False]
    assert type(make_testbed(**asked).runner) is LaunchedRunner
    assert "--through plugin can" in make_testbed(**asked).why_not(LL128)


def test_gloo_needs_no_plugin(environ):
    """No NCCL loads it there."""
    found = make_testbed(**GLOO, persistent=True, environ=environ)
    assert isinstance(found.runner, LaunchedRunner)
    assert isinstance(found.searching[0], PersistentRunner)


def test_runners_of_one_study_share_what_the_default_took():
    """What one of them learns the other one knows, and torch_collectives stops sampling by it."""
    found = make_testbed(ONE, hosts=("a", "b"), parallel=2)
    (other,) = found.others
    (before,) = other.plans(DEFAULT, [MESSAGE])

    found.runner.calibrate(20.0, {MESSAGE: 10.0})

    (after,) = other.plans(DEFAULT, [MESSAGE])
    # The script that goes over ssh holds the command, and the worker itself.
    told = re.compile(r"--enough-us\W+15\W+--messages")
    assert not told.search(str(before))
    assert told.search(str(after))
    assert before.timeout_s > after.timeout_s == 100.0


def test_every_trial_has_the_sites_variables_and_none_has_tuning_or_logs(tmp_path):
    environ = {"NCCL_ALGO": "Tree", "NCCL_IB_HCA": "mlx5_0", "NCCL_DEBUG": "INFO", "NCCL_OF_OURS": "1"}
    conf = tmp_path / "nccl.conf"
    conf.write_text("NCCL_PROTO=LL\nNCCL_ALGO=Ring\nNCCL_IB_TC=106\n")
    environ |= {"PATH": "/usr/bin:/bin", "NCCL_CONF_FILE": str(conf)}
    made = make_testbed(ONE, environ=environ, launcher="torchrun", hosts=())

    assert made.runner.plans(DEFAULT, [MESSAGE])[0].unset_env == ("NCCL_ALGO", "NCCL_DEBUG")
    assert made.by_today.plans(DEFAULT, [MESSAGE])[0].unset_env == ("NCCL_DEBUG",)
    assert made.today == (("NCCL_ALGO", "Tree"),)
    assert [note for note in made.notes if "trial" in note] == [
        "kept in every trial (variables of the site): NCCL_CONF_FILE, NCCL_IB_HCA",
        "kept in every trial (unknown to ncclt): NCCL_OF_OURS",
        "your own tuning, only in trials of the A/B test: NCCL_ALGO",
        "removed from trials (debugging): NCCL_DEBUG",
        f"{conf} sets NCCL_PROTO=LL in every trial, the default's too",
    ]


def test_what_gloo_measures_never_stands_for_the_gpus_of_the_cluster():
    found = make_testbed(**GLOO)

    assert found.runner.cluster == on_cpus(CLUSTER) == on_cpus(on_cpus(CLUSTER))
    assert found.runner.cluster.fingerprint() != CLUSTER.fingerprint()
    assert found.runner.cluster.name != CLUSTER.name
    assert "NCCL takes no part" in found.inert
    assert make_testbed().inert == ""
    assert make_testbed(replace(CLUSTER), backend="nccl").runner.cluster == CLUSTER


def test_without_a_cluster_only_cpus_can_be_measured():
    here = cluster_here(Target(gpus_per_node=3, backend="gloo"))
    assert (here.nodes, here.gpus_per_node, here.gpu) == (1, 3, "CPUs (gloo)")
    with pytest.raises(UsageError, match="--cluster is needed"):
        cluster_here(Target(nodes=1, gpus_per_node=2))
    with pytest.raises(UsageError, match="several nodes need a --cluster"):
        cluster_here(Target(nodes=2, gpus_per_node=2, backend="gloo"))


def test_the_plugin_is_the_default_wherever_it_is_found_and_can_be_used(tmp_path, plugin, environ):
    """Containers have files of their own: there somebody must have put it into the image."""
    torch = {"launcher": "slurm", "benchmark": "torch_collectives"}
    contained = {**torch, "launcher_option": ("container=i",)}
    uses = (torch, {"launcher": "ssh"}, {**torch, "persistent": True}, {**contained, "through": "plugin"})
    leaves = (
        {**torch, "through": "variables"},
        contained,
        {**torch, "backend": "gloo"},
        {"launcher": "local"},
        {"launcher": "slurm"},
        {"launcher": "kubernetes", "benchmark": "torch_collectives"},
        {"launcher": "slurm", "through": "plugin"},
        {"launcher": "slurm", "scratch": tmp_path},
    )
    told = ({"launcher": "local", "through": "plugin"}, {"launcher": "slurm", "scratch": tmp_path, "through": "plugin"})
    assert [Target(**place).plugin(environ) for place in told] == [plugin] * 2
    assert [Target(**place).plugin(environ) for place in uses] == [plugin] * len(uses)
    assert [Target(**place).plugin(environ) for place in leaves] == [None] * len(leaves)
    assert Target(**torch).plugin(NO_PLUGIN) is None


def test_gloo_is_a_backend_of_pytorch_under_every_launcher():
    """What it lacks for the plugin is not the benchmark, which it has."""
    for launcher in ("slurm", "mpirun", "ssh", "torchrun"):
        found = Target(launcher=launcher, backend="gloo")
        assert (found.benchmark_name, found.is_gloo) == ("torch_collectives", True)
        assert found.how_with_plugin == "the tuner plugin can, with --backend nccl"
    with pytest.raises(UsageError, match="gloo does not apply to --benchmark nccl_tests"):
        Target(launcher="slurm", backend="gloo", benchmark="nccl_tests").require(ONE)


def test_what_variables_cannot_force_says_what_could():
    found = make_testbed(ONE, hosts=("a", "b"))
    assert "`ncclt admin plugin build` makes it possible" in found.why_not(LL128)
    assert "--through plugin can" in make_testbed(ONE, hosts=("a", "b"), through="variables").why_not(LL128)
