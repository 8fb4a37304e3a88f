"""The runner of persistent ranks, towards a rank 0 played here: what it believes, whom it blames, what it does."""

import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from ncclt.core.algorithms import Algorithm, Protocol
from ncclt.core.message import Collective, Message
from ncclt.core.policy import Policy, Rule
from ncclt.core.setting import DEFAULT, Setting
from ncclt.core.trial import Outcome
from ncclt.launch.launcher import LaunchPlan, LaunchResult
from ncclt.measure import PersistentRunner, Timeouts
from ncclt.measure.benchmarks.torch_collectives import TorchCollectives
from ncclt.measure.benchmarks.torch_worker import ncclt_torch_worker as worker
from ncclt.measure.benchmarks.torch_worker.ncclt_torch_connection import RankConnectionError, connect
from ncclt.measure.persistent import runner as persistent_module
from ncclt.measure.persistent import session as session_module
from ncclt.nccl.compile import compile_policy, variables_for_setting
from ncclt.nccl.switching import SwitchCost
from ncclt.nccl.tuner_plugin.shared_table import lay_out_table
from ncclt.nccl.tuner_table import PluginRow
from ncclt.testing.samples import sample_cluster

PATIENCE_S = 60.0
MESSAGE = Message(collective=Collective.ALL_REDUCE, dtype="float32", size_bytes=4096, group_size=2)
RING = Setting(algorithm=Algorithm.RING, protocol=Protocol.LL)
BUFFSIZE = Setting(parameters=(("BUFFSIZE", 1 << 20),))
APPLIED = [
    {"ncclt_plugin_report": 1, "not_in_use": ""},
    {"collective": "all_reduce", "outcome": "applied", "algorithm": "ring", "protocol": "ll", "channels": 0},
]


class PlayedRanks:
    """A launcher whose ranks are one thread that answers as `plays` says, launch after launch.

    Each play is a list of answers to trials: a dictionary is merged into a good answer, None ends the ranks without a
    word, "silent" never answers, "never" dies before the trial has begun, "gone" dies as soon as the one before it is
    answered, and bytes are written as they are.
    """

    name, reaches_back, shares_files = "torchrun", True, True
    inherited = ()

    def __init__(self, *plays, version="2.30.7"):
        self.plays, self.version = list(plays), version
        self.plans, self.orders = [], []
        self._ended = threading.Event()

    def plan(self, argv, *, variables, timeout_s, files=()):
        assert all(Path(file).is_file() for file in files)
        return LaunchPlan(argv=tuple(argv), set_env=tuple(sorted(variables.items())), timeout_s=timeout_s)

    def kill(self):
        self._ended.set()

    def run(self, plan):
        self._ended.clear()
        self.plans.append(plan)
        answers = list(self.plays.pop(0)) if self.plays else [{}] * 100
        if answers == ["no start"]:
            return LaunchResult(exit_code=1, stderr="Test CUDA failure: the driver is missing")
        words = dict(zip(plan.argv, plan.argv[1:], strict=False))
        connection = connect(words["--controller"], Path(words["--token"]).read_bytes(), within_s=PATIENCE_S)
        try:
            self._serve(connection, answers)
        except RankConnectionError:
            pass
        finally:
            connection.close()
        return LaunchResult(exit_code=7, killed=self._ended.is_set(), stderr="NCCLT-TRIAL 1\nit ends\n", wall_s=1.0)

    def _serve(self, connection, answers):
        while not self._ended.is_set():
            order = connection.receive(0.05)
            if order is None:
                continue
            if order["do"] == "end":
                return
            if order["do"] == "begin":
                equal = {"version of NCCL": self.version} if self.version else {}
                connection.send({"ready": 0, "environment": {"nodes": [[0, 1]], "equal": equal}, "reports": ""})
                continue
            self.orders.append(order)
            answer = answers.pop(0) if answers else {}
            if answer == "never":
                return
            connection.send({"begun": order["number"]})
            if answer is None:
                return
            if answer == "silent":
                self._ended.wait(PATIENCE_S)
                return
            if isinstance(answer, bytes):
                connection._socket.sendall(answer)
                self._ended.wait(PATIENCE_S)
                return
            report = worker.WorkerReport(None)
            words = order["arguments"][order["arguments"].index("--messages") + 1 :]
            report.document["measurements"] = [
                {"message": word, "samples_us": [10.0, 12.0, 11.0], "settled": True, "bits": ""}
                | {"wrong": answer.get("wrong", 0)}
                for word in words
            ]
            good = {"done": order["number"], "lines": list(report.lines()), "said": "", "seconds": 0.1}
            connection.send({**good, "decisions": APPLIED if order["attest"] else None, **answer})
            if answers[:1] == ["gone"]:
                return


class Clock:
    """The real one, and later by what somebody says."""

    later_s = 0.0

    def monotonic(self):
        return time.monotonic() + self.later_s


@pytest.fixture
def clock(monkeypatch):
    """Return a clock that runner and session go by, and that can be put forward between two trials."""
    found = Clock()
    for module in (session_module, persistent_module):
        monkeypatch.setattr(module, "time", found)
    return found


@pytest.fixture
def made(monkeypatch):
    """Make a runner over played ranks; ended at the end."""
    runners = []

    def make(*plays, version="2.30.7", really="2.30.7", plugin=None, start_s=PATIENCE_S):
        launcher = PlayedRanks(*plays, version=really)
        cluster = replace(sample_cluster(nodes=1), gpus_per_node=2, nccl_version=version)

        def variables(setting):
            return dict(
                variables_for_setting(setting, version=cluster.version, collectives=[MESSAGE.collective]).variables
            )

        def delivered(policy):
            found = compile_policy(policy, version=cluster.version, collectives=[MESSAGE.collective])
            return dict(found.variables) if found.complete else None

        runner = PersistentRunner(
            benchmark=TorchCollectives(),
            launcher=launcher,
            cluster=cluster,
            variables=variables,
            plugin=plugin,
            policy_variables=delivered,
            timeouts=Timeouts(start_s=start_s),
        )
        runners.append(runner)
        return runner, launcher

    monkeypatch.setattr(session_module, "AFTERWARDS_S", 1.0)
    yield make
    for runner in runners:
        runner.close()


def outcomes(runner, *settings):
    results = [runner.measure(setting, [MESSAGE], repeat=0) for setting in settings]
    return [result.outcome for result in results], results[-1].detail


def test_orders_hold_what_changes_and_what_is_measured(made):
    runner, launcher = made()
    assert outcomes(runner, DEFAULT, RING, BUFFSIZE, DEFAULT)[0] == [Outcome.OK] * 4
    assert [(order["level"], order["variables"]) for order in launcher.orders] == [
        ("call", {}),
        ("communicator", {"NCCL_ALGO": "allreduce:ring", "NCCL_PROTO": "allreduce:LL"}),
        ("communicator", {"NCCL_ALGO": None, "NCCL_PROTO": None, "NCCL_BUFFSIZE": "1048576"}),
        ("communicator", {"NCCL_BUFFSIZE": None}),
    ]
    assert all(order["table"] is None for order in launcher.orders)
    assert all(order["arguments"][-2:] == ["--messages", "all_reduce:float32:1024:2"] for order in launcher.orders)
    (plan,) = launcher.plans
    assert "NCCL_BUFFSIZE" in dict(plan.set_env)["NCCL_NO_CACHE"].split(",")
    assert runner.switches == {SwitchCost.PROCESS: 1, SwitchCost.COMMUNICATOR: 3}


def test_an_older_nccl_than_we_were_told_of_is_not_believed_to_read_again(made):
    """Its ranks are started anew where the newer one would only have made communicators."""
    runner, launcher = made(really="2.28.9")
    assert outcomes(runner, DEFAULT, BUFFSIZE, DEFAULT)[0] == [Outcome.OK] * 3
    assert ["NCCL_NO_CACHE" in dict(plan.set_env) for plan in launcher.plans] == [True, False, False]
    assert [dict(plan.set_env).get("NCCL_BUFFSIZE") for plan in launcher.plans] == [None, "1048576", None]
    assert runner.switches == {SwitchCost.PROCESS: 3}


def test_a_newer_nccl_than_we_were_told_of_was_not_asked_to_read_again(made):
    runner, launcher = made(version="2.28.9", really="2.30.7")
    assert outcomes(runner, DEFAULT, BUFFSIZE)[0] == [Outcome.OK] * 2
    assert len(launcher.plans) == 2


def test_a_choice_is_attested_once_and_then_switched_per_call(made):
    runner, launcher = made(plugin=Path("/opt/plugin.so"))
    assert outcomes(runner, DEFAULT, RING, DEFAULT, RING)[0] == [Outcome.OK] * 4
    assert [order["attest"] for order in launcher.orders] == [False, True, False, False]
    assert [order["table"] is None for order in launcher.orders] == [True, False, False, False]
    assert [order["level"] for order in launcher.orders] == ["call"] * 4
    assert dict(launcher.plans[0].set_env)["NCCL_TUNER_PLUGIN"] == "/opt/plugin.so"


POLICY = Policy(
    rules=(
        Rule(collective=Collective.ALL_REDUCE, max_bytes=8191, algorithm=Algorithm.RING, protocol=Protocol.LL),
        Rule(
            collective=Collective.ALL_REDUCE,
            max_bytes=1 << 20,
            group_size=2,
            algorithm=Algorithm.RING,
            protocol=Protocol.LL,
            channels=4,
        ),
    ),
    parameters=BUFFSIZE.parameters,
)


def test_the_plugin_applies_a_whole_policy_in_one_launch_with_the_variables_beside_it(made):
    runner, launcher = made(plugin=Path("/opt/plugin.so"))

    assert runner.applies(POLICY)
    assert runner.measure_policy(POLICY, [MESSAGE], repeat=0).outcome is Outcome.OK
    (order,) = launcher.orders
    rows = [
        PluginRow(collective="allreduce", algorithm="ring", protocol="ll", last_bytes=1 << 20, channels=4, ranks=2),
        PluginRow(collective="allreduce", algorithm="ring", protocol="ll", last_bytes=8191),
    ]
    assert order["table"] == lay_out_table(rows, 1), "groups come first"
    assert order["attest"] is True
    assert order["variables"] == {"NCCL_BUFFSIZE": "1048576"}


@pytest.mark.parametrize(
    ("version", "rule"),
    [
        ("2.20.5", {}),
        ("2.21.5", {"protocol": Protocol.LL128}),
        ("2.30.7", {"protocol": None}),
    ],
)
def test_what_no_row_of_a_table_can_say_is_not_applied_by_one(made, version, rule):
    runner, _ = made(plugin=Path("/opt/plugin.so"), version=version)
    assert not runner.applies(Policy(rules=(replace(POLICY.rules[0], **rule),)))


def test_without_a_plugin_a_policy_of_variables_takes_one_launch_and_no_other_does(made):
    runner, launcher = made()
    uniform = Policy(rules=(replace(POLICY.rules[0], max_bytes=None),))

    assert not runner.applies(POLICY)
    assert runner.applies(uniform)
    assert runner.measure_policy(uniform, [MESSAGE], repeat=0).outcome is Outcome.OK
    assert launcher.orders[0]["variables"] == {"NCCL_ALGO": "allreduce:ring", "NCCL_PROTO": "allreduce:LL"}
    assert launcher.orders[0]["table"] is None


@pytest.mark.parametrize("plugin", [None, Path("/opt/plugin.so")])
def test_every_result_says_whether_the_plugin_forced_it(made, plugin):
    runner, _ = made(plugin=plugin)
    settings = (DEFAULT, RING, Setting(algorithm=Algorithm.RING, protocol=Protocol.LL128))
    found = [runner.measure(setting, [MESSAGE], repeat=0) for setting in settings]
    assert {result.by_plugin for result in found} == {plugin is not None}


@pytest.mark.parametrize(
    ("decisions", "said", "words"),
    [
        ([], Outcome.SUBSTITUTED, "NCCL did not load it; the NCCL default ran instead"),
        (
            [APPLIED[0], {**APPLIED[1], "outcome": "unavailable"}],
            Outcome.SUBSTITUTED,
            "NCCL does not offer ring/ll for all_reduce here; the NCCL default ran instead",
        ),
        ([5], Outcome.INVALID, "cannot be read"),
        (None, Outcome.SUBSTITUTED, "NCCL did not load it"),
    ],
)
def test_what_the_plugin_does_not_attest_was_not_measured(made, decisions, said, words):
    """No report at all is what a plugin that NCCL could not load leaves; None is what ranks without it say."""
    runner, _ = made([{}, {"decisions": decisions}, {}], plugin=Path("/opt/plugin.so"))
    first, forced, last = [runner.measure(setting, [MESSAGE], repeat=0) for setting in (DEFAULT, RING, DEFAULT)]
    assert (forced.outcome, forced.measurements) == (said, ())
    assert words in forced.detail
    assert first.outcome is last.outcome is Outcome.OK
    assert runner.switches[SwitchCost.PROCESS] == 1


@pytest.mark.parametrize(
    ("answer", "outcome", "words"),
    [
        (None, Outcome.CRASHED, "it ends"),
        (b'{"done": 2}\n', Outcome.CRASHED, "unreadable reply from rank 0"),
        (b"\xff\xfe\n", Outcome.CRASHED, "unreadable reply from rank 0"),
        ({"done": 1}, Outcome.CRASHED, "an unexpected reply"),
        ({"wrong": 3}, Outcome.WRONG_RESULT, "3 elements came out wrong"),
    ],
)
def test_ranks_that_fail_are_replaced(made, answer, outcome, words):
    runner, launcher = made([{}, answer])
    assert outcomes(runner, DEFAULT)[0] == [Outcome.OK]
    found, detail = outcomes(runner, RING)
    assert (found, words in detail) == ([outcome], True), detail
    assert outcomes(runner, RING, DEFAULT)[0] == [Outcome.OK] * 2
    assert len(launcher.plans) == 2


def test_a_hang_costs_its_limit_and_no_more(made):
    runner, launcher = made(["silent"], start_s=1.0)
    found, detail = outcomes(runner, RING)
    assert found == [Outcome.TIMEOUT]
    assert detail.startswith("not done within 1 s")
    assert len(launcher.plans) == 1


def test_ranks_that_never_begin_are_given_up(made):
    runner, launcher = made(["never"], ["never"])
    assert outcomes(runner, RING)[0] == [Outcome.CRASHED]
    assert len(launcher.plans) == 2


def test_ranks_that_cannot_start_say_why(made):
    runner, _ = made(["no start"], ["no start"])
    found, detail = outcomes(runner, RING)
    assert found == [Outcome.CRASHED]
    assert "the driver is missing" in detail
    assert runner.measure(RING, [MESSAGE], repeat=0).detail == detail


def test_somebody_else_who_ends_the_launcher_stops_everything(made):
    runner, launcher = made([{}, "silent"])
    assert outcomes(runner, DEFAULT)[0] == [Outcome.OK]
    threading.Timer(0.3, launcher.kill).start()
    with pytest.raises(KeyboardInterrupt):
        runner.measure(RING, [MESSAGE], repeat=0)


def test_an_older_nccl_that_shows_when_ranks_start_gets_ranks_that_have_the_setting(made):
    """The first trial of a resumed study may be any setting: where new ranks are due it must not be the default."""
    runner, launcher = made(really="2.28.9")
    assert outcomes(runner, BUFFSIZE)[0] == [Outcome.OK]
    assert [dict(plan.set_env).get("NCCL_BUFFSIZE") for plan in launcher.plans] == [None, "1048576"]
    assert [(order["level"], order["variables"]) for order in launcher.orders] == [("call", {})]


def test_what_the_default_took_counts_its_start_once(made, clock):
    """A fresh launch waits by what is learnt here; counted twice, a hang would cost every GPU twice as long."""
    runner, _ = made()
    runner._timeouts = Timeouts(floor_s=0.0, factor=1.0)
    first = runner.measure(DEFAULT, [MESSAGE], repeat=0)
    assert runner._timeouts.limit_s([MESSAGE]) == pytest.approx(first.wall_s)
    runner._timeouts = Timeouts(floor_s=0.0, factor=1.0)
    clock.later_s += 1000.0
    second = runner.measure(DEFAULT, [MESSAGE], repeat=1)
    waited_s = second.wall_s - (runner._timeouts.limit_s([MESSAGE]) - runner._start_s)
    assert 1000.0 <= waited_s < 1000.0 + PATIENCE_S


def test_every_second_of_held_ranks_is_paid_for_once(made, clock):
    runner, launcher = made()
    began_s = clock.monotonic()
    results = []
    for setting in (DEFAULT, RING, Setting(algorithm=Algorithm.RING, protocol=Protocol.LL128), BUFFSIZE):
        results.append(runner.measure(setting, [MESSAGE], repeat=0))
        clock.later_s += 100.0  # the search thinks, or waits for the store or for another worker
    held_s = clock.monotonic() - 100.0 - began_s

    assert [result.outcome for result in results] == [Outcome.OK, Outcome.OK, Outcome.INVALID, Outcome.OK]
    assert len(launcher.plans) == 1, "the same ranks"
    assert [result.wall_s // 100.0 for result in results] == [0, 1, 0, 2]
    assert sum(result.wall_s for result in results) == pytest.approx(held_s, abs=1.0)


def test_ranks_that_are_gone_are_not_paid_for(made, clock):
    runner, launcher = made([{}, "gone"], [{}])
    runner.measure(DEFAULT, [MESSAGE], repeat=0)
    runner._session._thread.join(PATIENCE_S)
    clock.later_s += 100.0
    assert runner.measure(RING, [MESSAGE], repeat=0).wall_s < 100.0
    runner.close()
    clock.later_s += 100.0
    assert runner.measure(RING, [MESSAGE], repeat=1).wall_s < 100.0
    assert len(launcher.plans) == 3
