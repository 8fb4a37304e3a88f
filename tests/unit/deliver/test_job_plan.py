"""What a job is given: together or not at all, and a table only where every node reads it."""

import itertools
import json
import os
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from ncclt.client.trust import UntrustedError
from ncclt.core.algorithms import Algorithm, Protocol
from ncclt.core.attestation import Form
from ncclt.core.message import Collective
from ncclt.core.policy import Policy, Rule
from ncclt.deliver.agree import hook_path, write_hook
from ncclt.deliver.answer import Answer, answer_from_json, answer_from_table, policy_from_answer
from ncclt.deliver.job_info import JobInfo, read_site, read_variables
from ncclt.deliver.job_plan import JobPlan, Means, effective_variables, plan_job
from ncclt.deliver.node_files import place_plugin, table_path, write_table
from ncclt.errors import InputError, UsageError

GOLDEN = Path(__file__).parents[2] / "golden" / "env"
RULES = Policy(rules=(Rule(collective=Collective.ALL_REDUCE, algorithm=Algorithm.RING, protocol=Protocol.LL),))
ANSWER = Answer(
    recommendation="r1",
    cluster="c",
    model="m",
    nccl_version="2.28.9",
    nodes=1,
    ranks=8,
    variables=(("NCCL_ALGO", "allreduce:ring"), ("NCCL_BUFFSIZE", "8388608")),
    table="rows\n",
    rules=RULES,
    table_variables=(("NCCL_BUFFSIZE", "8388608"),),
    site_variables=(),
)
AT_SITE = replace(ANSWER, site_variables=(("NCCL_IB_HCA", "mlx5"),))
PLUGIN, HOOK = Path("/lib/plugin.so"), Path("/shared/hook")
TABLE, BY_FILE = {"NCCLT_TABLE": "1:t"}, {"NCCLT_POLICY": "/shared/t.csv", "NCCLT_POLICY_CHECKSUM": "0"}


def job(argv=("torchrun", "train.py"), environ=None, **facts):
    environ = environ or {}
    return JobInfo(
        argv=tuple(argv),
        environ=environ,
        variables=read_variables(argv, environ),
        site=read_site(argv, environ),
        **facts,
    )


def plan(answer=ANSWER, argv=("torchrun", "train.py"), environ=None, gpus=None, **options):
    means = Means(**{"plugin": PLUGIN, "table": TABLE, "hook": HOOK, "shared": False, **options})
    return plan_job(answer, job(argv, environ, gpus=gpus), means)


def test_the_table_goes_with_the_variables_that_it_needs():
    planned = plan()
    assert (planned.form, planned.unset_env, planned.notes) == (Form.TABLE, (), ())
    assert dict(planned.set_env) == {
        "NCCL_TUNER_PLUGIN": "/lib/plugin.so",
        "NCCLT_TABLE": "1:t",
        "NCCL_BUFFSIZE": "8388608",
        "NCCLT_RECOMMENDATION": "r1",
        "NCCLT_AGREEMENT": "hook",
        "PYTHONPATH": "/shared/hook",
    }


def test_without_plugin_the_variables_are_set_and_that_is_said():
    planned = plan(plugin=None)
    assert planned.form is Form.VARIABLES
    assert dict(planned.set_env)["NCCL_ALGO"] == "allreduce:ring"
    assert {"NCCLT_TABLE", "NCCLT_AGREEMENT", "PYTHONPATH"}.isdisjoint(dict(planned.set_env))
    assert "ncclt admin plugin build" in planned.notes[0]


def test_a_table_that_a_node_may_lack_is_not_used(subtests):
    """Ranks that disagree hang or corrupt data."""
    for nodes, argv, environ, shared, form in [
        (1, ("python", "train.py"), {}, False, Form.TABLE),
        (2, ("torchrun", "train.py"), {}, False, Form.TABLE),
        (2, ("/opt/bin/python", "-m", "torch.distributed.run", "train.py"), {}, False, Form.TABLE),
        (2, ("python", "train.py"), {"SLURM_PROCID": "1"}, False, Form.TABLE),
        (2, ("./job.sh",), {}, False, Form.VARIABLES),
        (1, ("srun", "-N1", "python"), {}, False, Form.VARIABLES),
        (2, ("/usr/bin/mpirun", "torchrun"), {}, False, Form.VARIABLES),
        (1, ("time", "srun", "-N1", "python"), {}, False, Form.VARIABLES),
        (2, ("env", "A=1", "srun", "torchrun"), {}, False, Form.VARIABLES),
        (2, ("./on_all_nodes", "torchrun"), {}, False, Form.VARIABLES),
        (2, ("srun", "python"), {}, True, Form.TABLE),
        (2, ("./job.sh",), {}, True, Form.TABLE),
    ]:
        with subtests.test(nodes=nodes, argv=argv, environ=environ, shared=shared, form=form):
            answer = replace(ANSWER, nodes=nodes)
            for agreed in (
                plan(answer, argv, {**environ, "NCCLT_AGREEMENT": "none"}, shared=shared),
                plan(answer, argv, environ, shared=shared, hook=None),
                plan(answer, argv, environ, shared=shared, table=BY_FILE),
            ):
                assert agreed.form is form
                assert any("--policy-dir" in note for note in agreed.notes) == (form is Form.VARIABLES)
            assert plan(answer, argv, environ, shared=shared).form is Form.TABLE, (
                "its ranks agree on the table that they carry"
            )


def test_agreement_is_turned_off_by_its_variable_alone():
    for environ, argv in (({"NCCLT_AGREEMENT": "none"}, ("./job",)), ({}, ("env", "NCCLT_AGREEMENT=none", "./job"))):
        planned = plan(argv=argv, environ=environ)
        assert planned.form is Form.TABLE
        assert {"NCCLT_AGREEMENT", "PYTHONPATH"}.isdisjoint(dict(planned.set_env))
        assert planned.notes == ()
    with pytest.raises(UsageError, match="NCCLT_AGREEMENT is 'off'"):
        plan(environ={"NCCLT_AGREEMENT": "off"})


def test_a_command_that_may_lack_pytorch_is_told_how_to_use_the_table_without():
    assert "NCCLT_AGREEMENT=none" in plan(argv=("srun", "./all_reduce_perf"), shared=True).notes[-1]
    assert plan(argv=("srun", "python3.11", "train.py"), shared=True).notes == ()


def test_a_command_that_hides_the_hook_gets_no_table():
    planned = plan(argv=("env", "PYTHONPATH=/mine", "torchrun", "train.py"))
    assert (planned.form, "PYTHONPATH" in planned.notes[0]) == (Form.VARIABLES, True)
    assert plan(argv=("sh", "-c", "PYTHONPATH=/mine:$PYTHONPATH torchrun train.py")).form is Form.TABLE
    assert dict(plan(environ={"PYTHONPATH": "/mine"}).set_env)["PYTHONPATH"] == "/shared/hook:/mine"


def test_the_users_own_variable_wins_and_nothing_is_mixed_with_it(subtests):
    for own in [
        "NCCL_ALGO",
        "NCCL_MAX_CTAS",
        "NCCL_BUFFSIZE",
        "NCCL_TUNER_PLUGIN",
        "NCCLT_POLICY_SHM",
        "NCCLT_POLICY",
        "NCCLT_TABLE",
    ]:
        with subtests.test(own=own):
            planned = plan(AT_SITE, environ={own: "mine", "NCCL_IB_HCA": "mlx5"})
            assert (planned.set_env, planned.form) == ((), None)
            assert f"your {own}=mine is kept" in planned.notes[0]


def test_override_lets_the_users_own_tuner_answer_what_has_no_row():
    vendors = dict(plan(environ={"NCCL_TUNER_PLUGIN": "/opt/vendor.so"}, override=True).set_env)
    named = {"NCCL_TUNER_PLUGIN": "/opt/vendor.so", "NCCLT_DELEGATE": "none"}
    none = dict(plan(environ={"NCCL_TUNER_PLUGIN": "none"}, override=True).set_env)

    assert vendors["NCCL_TUNER_PLUGIN"] == str(PLUGIN)
    assert vendors["NCCLT_DELEGATE"] == "/opt/vendor.so"
    assert dict(plan(environ=named, override=True).set_env)["NCCLT_DELEGATE"] == "none"
    assert "NCCLT_DELEGATE" not in none


def test_override_replaces_them_and_takes_away_what_stands_against_the_table():
    planned = plan(AT_SITE, environ={"NCCL_ALGO": "Tree", "NCCL_BUFFSIZE": "1", "NCCL_IB_HCA": "mlx5"}, override=True)
    assert (planned.form, planned.unset_env) == (Form.TABLE, ("NCCL_ALGO",))
    assert dict(planned.set_env)["NCCL_BUFFSIZE"] == "8388608"
    assert "NCCL_IB_HCA" not in dict(planned.set_env)


def test_interfaces_of_one_node_never_divide_a_job():
    """Nodes may name them differently, and a node that refuses what others use would keep the job from starting."""
    measured = replace(ANSWER, site_variables=(("NCCL_IB_TC", "106"), ("NCCL_SOCKET_IFNAME", "ib0")))
    here = {"NCCL_IB_TC": "106", "NCCL_SOCKET_IFNAME": "bond0", "NCCL_OF_THIS_RANK": "1"}

    def planned(environ, *, alone):
        options = {"plugin": PLUGIN, "table": TABLE, "hook": HOOK, "shared": True}
        return plan_job(measured, job(environ=environ, decides_alone=alone), Means(**options))

    assert planned(here, alone=False).form is Form.TABLE
    assert planned(here, alone=True).form is None
    assert planned(here | {"NCCL_IB_TC": "1"}, alone=False).form is None


def test_override_removes_every_tuning_variable_also_those_that_are_never_searched():
    """The measured arm had none of them."""
    own = {"NCCL_NET_SHARED_BUFFERS": "0", "NCCL_TUNER_CONFIG_FILE": "/site/t.csv"}
    assert plan(environ=own).form is None
    assert plan(environ=own, override=True).unset_env == tuple(own)


def test_an_equal_value_is_no_conflict():
    assert plan(plugin=None, environ={"NCCL_ALGO": "allreduce:ring"}).form is Form.VARIABLES


def test_nothing_proven_is_nothing_set():
    planned = plan(Answer(recommendation="r1"))
    assert (planned.set_env, planned.form) == ((), None)
    assert "Nothing set" in planned.notes[-1]


def test_where_nothing_is_set_the_verdict_says_why():
    planned = plan(answer_from_json((GOLDEN / "keep_default.json").read_text()))
    assert planned.notes[-1] == ("Nothing set (keep-default: the gain of 0.4 % is below 2 %)")


def test_where_only_the_table_was_proven_and_is_not_used_that_is_why():
    document = json.loads((GOLDEN / "keep_default.json").read_text())
    document["table_verdict"] |= {"decision": "tuned", "reason": "communication is faster by +11 %"}
    why = plan(answer_from_json(json.dumps(document)), plugin=None).notes[-1]
    assert why == "Nothing set (only the table was validated)"


def rows_of(table):
    return [line for line in table.splitlines() if not line.startswith("#")]


def test_what_is_rendered_is_read_back():
    answer = answer_from_json((GOLDEN / "tuned.json").read_text())
    # The rows are written here, from the rules of the answer, as the server writes them.
    assert rows_of(answer.table) == rows_of((GOLDEN / "tuned.tuner-csv").read_text())
    assert (answer.recommendation, answer.nodes, answer.ranks, answer.simulated) == ("r-1f3c", 2, 8, True)
    assert dict(answer.table_variables) == {"NCCL_BUFFSIZE": "8388608"}
    # One rule names no protocol, so the table has no row for it.
    assert [rule.collective for rule in answer.rules.rules] == [Collective.ALL_REDUCE] * 3
    assert policy_from_answer(answer, Form.TABLE).policy == answer.rules
    assert {rule.channels for rule in policy_from_answer(answer, Form.VARIABLES).policy.rules} == {8}


def test_what_is_no_environment_is_said_so(subtests):
    for text in ["", "[]", "{}", "[" * 100_000, '{"table": [], "table_parameters": {}}']:
        with subtests.test(text=text), pytest.raises(InputError, match="not an answer of ncclt"):
            answer_from_json(text)


def test_a_table_from_a_file_brings_its_variables(tmp_path):
    answer = answer_from_table(GOLDEN / "tuned.tuner-csv")
    assert answer.simulated
    assert (answer.recommendation, answer.nccl_version, answer.nodes, answer.ranks) == ("r-1f3c", "2.28.9", 2, 8)
    assert answer.table_variables == (("NCCL_BUFFSIZE", "8388608"),)
    (tmp_path / "own.csv").write_text("allreduce,0,8,ring,ll,-1,-1,-1\n")
    whole = (GOLDEN / "tuned.tuner-csv").read_text()
    (tmp_path / "edited.csv").write_text(whole.replace(",ring,", ",tree,", 1))
    (tmp_path / "cut.csv").write_text("\n".join(whole.splitlines()[:-1]))
    for path, said in (
        (tmp_path / "own.csv", "begin like a table"),
        (tmp_path / "none", "cannot be read"),
        (tmp_path / "edited.csv", "damaged or was edited"),
        (tmp_path / "cut.csv", "damaged or was edited"),
    ):
        with pytest.raises(UsageError, match=said):
            answer_from_table(path)


def test_nodes_that_reach_the_hook_by_another_path_are_the_same():
    mounted = plan(hook=Path("/mnt/hook"), environ={"PYTHONPATH": "/opt"})
    assert effective_variables(mounted, job()) == effective_variables(plan(), job())
    assert effective_variables(plan(environ={"NCCLT_AGREEMENT": "none"}), job()) != effective_variables(plan(), job())


def test_a_table_is_written_whole_and_found_again(tmp_path):
    path = table_path(tmp_path / "a" / "tables", "rows\n")
    write_table(path, "rows\n")
    first = path.stat()
    write_table(path, "rows\n")
    assert (path.read_text(), path.stat().st_ino) == ("rows\n", first.st_ino)
    assert (first.st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o644, 0o700)
    path.chmod(0o600)  # as an earlier version wrote it: a TaskProlog for all could not read it
    write_table(path, "rows\n")
    assert path.stat().st_mode & 0o777 == 0o644
    path.write_text("damaged")
    write_table(path, "rows\n")
    assert path.read_text() == "rows\n"
    assert list(path.parent.iterdir()) == [path]


def test_a_good_table_that_others_read_already_is_not_replaced(tmp_path, monkeypatch):
    """Two processes found none at the same time; the second one has written its own when the first one's is there."""
    path = tmp_path / "t.csv"
    made = tempfile.mkstemp

    def late(*words, **options):
        path.write_text("rows\n")
        return made(*words, **options)

    monkeypatch.setattr("ncclt.deliver.node_files.tempfile.mkstemp", late)
    with_first = []
    monkeypatch.setattr(Path, "replace", lambda *names: with_first.append(names))
    write_table(path, "rows\n")
    assert (with_first, path.read_text(), list(tmp_path.iterdir())) == ([], "rows\n", [path])


def test_what_the_command_sets_itself_is_not_mixed_with_either(subtests):
    """It goes over what is inherited, and no --override can take it away."""
    for command, override in itertools.product(
        [
            "mpirun -x NCCL_ALGO=tree -np 2 train",
            "srun --export=ALL,NCCL_ALGO=tree train",
            "env A=1 NCCL_ALGO=tree train",
            "mpiexec.hydra -genv NCCL_ALGO tree train",
        ],
        [False, True],
    ):
        with subtests.test(command=command, override=override):
            planned = plan(argv=command.split(), shared=True, override=override)
            assert (planned.set_env, planned.form) == ((), None)
            assert "the command itself sets NCCL_ALGO=tree" in planned.notes[-1]


def test_what_the_command_sets_alike_or_beside_is_no_conflict():
    command = ["mpirun", "-x", "NCCL_BUFFSIZE=8388608", "-x", "NCCL_IB_HCA=mlx5", "-x", "NCCL_DEBUG", "train"]
    assert plan(AT_SITE, argv=command, shared=True).form is Form.TABLE


@pytest.mark.parametrize("form", [Form.TABLE, None])
def test_a_tuner_of_ones_own_on_one_node_alone_is_seen(form):
    planned = plan() if form else JobPlan()
    theirs = {"NCCL_TUNER_PLUGIN": "/site/libother.so", "NCCL_TUNER_CONFIG_FILE": "/site/t.csv"}
    assert (effective_variables(planned, job(environ=theirs)) != effective_variables(planned, job())) is (form is None)
    assert effective_variables(planned, job(environ=theirs)) == effective_variables(
        planned, job(environ={**theirs, "NCCL_TUNER_PLUGIN": "/mnt/libother.so"})
    )


DIFFERING = {
    "NCCL_BUFFSIZE": "1048576",
    "NCCL_NTHREADS": "64",
    "NCCL_NET": "Socket",
    "NCCL_IB_DISABLE": "1",
    "NCCL_P2P_DISABLE": "1",
    "NCCL_SHM_DISABLE": "1",
    "NCCL_NVLS_ENABLE": "0",
    "NCCL_TOPO_FILE": "/x.xml",
}


@pytest.mark.parametrize(("name", "value"), DIFFERING.items())
@pytest.mark.parametrize("source", ["environment", "conf", "command"])
def test_job_that_differs_from_the_measured_one_gets_nothing(tmp_path, name, value, source):
    """With the name of the variable, both values, and where it comes from."""
    (tmp_path / "nccl.conf").write_text(f"# ours\n{name}={value}\n")
    environ = {"environment": {name: value}, "conf": {"NCCL_CONF_FILE": str(tmp_path / "nccl.conf")}, "command": {}}
    argv = ["env", f"{name}={value}", "torchrun", "train.py"] if source == "command" else ["torchrun", "train.py"]
    answer = replace(ANSWER, table_variables=())
    planned = plan(answer, argv, environ[source])
    assert (planned.set_env, planned.form) == ((), None)
    assert name in planned.notes[-1]
    assert value in planned.notes[-1]
    assert f"--allow-difference {name}" in planned.notes[-1] or "--allow-difference NAME" in planned.notes[-1]

    accepted = plan(answer, argv, environ[source], allowed=[name])
    assert accepted.form is Form.TABLE
    assert dict(accepted.set_env)["NCCLT_DIFFERENCE"] == name
    assert f"{name}: not set measured, {value} here" in accepted.notes[-1]


def test_default_values_and_what_changes_no_times_are_no_difference():
    assert plan(environ={"NCCL_IB_DISABLE": "0", "NCCL_IB_TIMEOUT": "22", "NCCL_HOSTID": "n1"}).form is Form.TABLE


def test_variables_of_the_site_must_be_those_of_the_measurement():
    """Over another rail the times are other ones; what was recorded or simulated says nothing about a site."""
    measured = replace(ANSWER, site_variables=(("NCCL_IB_HCA", "mlx5_0"),))
    assert plan(measured, environ={"NCCL_IB_HCA": "mlx5_0"}).form is Form.TABLE
    assert "NCCL_IB_HCA: mlx5_0 measured, mlx5_1 here" in plan(measured, environ={"NCCL_IB_HCA": "mlx5_1"}).notes[-1]
    assert "NCCL_IB_HCA: mlx5_0 measured, not set here" in plan(measured).notes[-1]
    overridden = plan(measured, environ={"NCCL_IB_HCA": "mlx5_1"}, override=True)
    assert (overridden.form, overridden.unset_env) == (None, ())
    accepted = plan(measured, environ={"NCCL_IB_HCA": "mlx5_1"}, allowed=["NCCL_IB_HCA"])
    assert dict(accepted.set_env)["NCCLT_DIFFERENCE"] == "NCCL_IB_HCA"
    unknown = replace(ANSWER, site_variables=None)
    assert plan(unknown, environ={"NCCL_IB_HCA": "mlx5_1"}).form is Form.TABLE


def test_home_and_named_conf_files_are_read_as_nccl_reads_them(tmp_path):
    (tmp_path / ".nccl.conf").write_text("NCCL_NET=Socket\n")
    (tmp_path / "other").write_text("NCCL_NTHREADS=64\n")
    home = {"HOME": str(tmp_path)}
    assert list(read_site((), home)) == ["NCCL_NET"]
    named = home | {"NCCL_CONF_FILE": str(tmp_path / "other")}
    assert list(read_variables((), named)) == ["NCCL_NTHREADS"]
    # Tuning of a configuration file was in every trial, so the measured job has it and is no other one.
    measured = replace(ANSWER, site_variables=(("NCCL_NTHREADS", "64"),))
    assert plan(measured, environ=named).form is Form.TABLE
    assert "NCCL_NTHREADS: 64 measured, not set here" in plan(measured).notes[-1]
    assert plan(environ=named).form is None
    assert read_site((), home | {"NCCL_NET": "IB"})["NCCL_NET"] == "IB"


def test_what_the_answer_sets_itself_cannot_be_accepted_as_a_difference():
    planned = plan(environ={"NCCL_BUFFSIZE": "1048576", "NCCL_ALGO": "ring"}, allowed=["NCCL_BUFFSIZE", "NCCL_ALGO"])
    assert planned.form is None


def test_machine_with_other_gpus_or_none_gets_nothing(subtests):
    for gpus, form, said in [
        (("NVIDIA H100 80GB HBM3",), Form.TABLE, ""),
        (("a GPU of unknown model",), Form.TABLE, ""),
        (("AMD Instinct MI355X",), None, "h100-sxm measured, AMD Instinct MI355X here (this machine)"),
        ((), None, "h100-sxm measured, no GPU here (this machine)"),
    ]:
        with subtests.test(gpus=gpus, form=form, said=said):
            planned = plan(replace(ANSWER, gpu="h100-sxm"), gpus=gpus)
            assert planned.form is form
            assert said in " ".join(planned.notes)
            name = "GPU" if gpus else "NO_GPU"
            assert plan(replace(ANSWER, gpu="h100-sxm"), gpus=gpus, allowed=[name]).form is Form.TABLE


def test_nodes_on_another_fabric_get_nothing(subtests):
    for measured, seen, nodes, form in [
        ("infiniband", ("roce",), 2, None),
        ("infiniband", ("infiniband", "roce"), 2, Form.TABLE),
        ("infiniband", (), 2, Form.TABLE),
        ("infiniband", ("roce",), 1, Form.TABLE),
        ("efa", ("roce",), 2, Form.TABLE),
    ]:
        with subtests.test(measured=measured, seen=seen, nodes=nodes, form=form):
            answer = replace(ANSWER, fabric=measured, nodes=nodes)
            options = {"plugin": PLUGIN, "table": TABLE, "hook": HOOK, "shared": True}
            planned = plan_job(answer, job(fabrics=seen), Means(**options))
            assert planned.form is form
            assert plan_job(answer, job(fabrics=seen), Means(allowed=["FABRIC"], **options)).form is Form.TABLE


def test_launch_node_without_a_gpu_starts_the_others():
    assert plan(argv=("srun", "train"), gpus=(), shared=True).form is Form.TABLE


def test_ticket_travels_in_the_environment_also_where_nothing_is_delivered():
    for answer in (replace(ANSWER, ticket="t-1"), Answer(recommendation="r1", ticket="t-1")):
        assert dict(plan(answer).set_env)["NCCLT_TICKET"] == "t-1"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a file of another user")
@pytest.mark.parametrize(("mode", "owner"), [(0o777, 0), (0o1777, 4711)])
def test_no_table_and_no_plugin_is_placed_where_another_user_could_swap_it(tmp_path, mode, owner):
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(mode)
    os.chown(folder, owner, owner)
    plugin = tmp_path / "plugin.so"
    plugin.write_bytes(b"code")
    with pytest.raises(UntrustedError):
        write_table(table_path(folder, "rows\n"), "rows\n")
    with pytest.raises(UntrustedError):
        place_plugin(folder, plugin)
    with pytest.raises(UntrustedError):
        write_hook(hook_path(folder))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a file of another user")
def test_table_that_another_user_placed_first_is_not_used(tmp_path):
    """The content is right when it is checked, and another one when the ranks read it."""
    folder = tmp_path / "sticky"
    folder.mkdir()
    folder.chmod(0o1777)
    path = table_path(folder, "rows\n")
    path.write_text("rows\n")
    os.chown(path, 4711, 4711)
    with pytest.raises(UntrustedError, match="belongs to user 4711"):
        write_table(path, "rows\n")
