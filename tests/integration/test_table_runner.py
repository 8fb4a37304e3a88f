"""nccl-tests forced by a table: a stand-in loads the compiled plugin as NCCL does, and the times show what it chose."""

import os
from dataclasses import replace

import nccl_tests_stand_in
import pytest

from ncclt.core.algorithms import Algorithm, Protocol
from ncclt.core.message import Collective, Message
from ncclt.core.policy import Policy, Rule
from ncclt.core.setting import DEFAULT, Setting
from ncclt.core.trial import Outcome
from ncclt.launch.local import LocalLauncher
from ncclt.measure.benchmarks.nccl_tests.benchmark import NcclTests
from ncclt.measure.benchmarks.nccl_tests.features import NcclTestsFeatures
from ncclt.measure.table_runner import TableRunner
from ncclt.nccl.variables import split_variables
from ncclt.testing.samples import sample_cluster

CLUSTER = sample_cluster("here", nodes=1)
SMALL, LARGE = 1 << 18, 4 << 20


def message(size=SMALL, collective=Collective.ALL_REDUCE, ranks=4):
    return Message(collective=collective, dtype="float32", size_bytes=size, group_size=ranks)


MESSAGES = [message(LARGE), message(SMALL), message(LARGE, Collective.ALL_GATHER), message(ranks=2)]
TREE = Setting(algorithm=Algorithm.TREE, protocol=Protocol.SIMPLE)
RULE = Rule(collective=Collective.ALL_REDUCE, group_size=4, algorithm=Algorithm.TREE, protocol=Protocol.LL128)
POLICY = Policy(
    rules=(
        replace(RULE, max_bytes=SMALL),
        replace(RULE, min_bytes=SMALL + 1, algorithm=Algorithm.RING, protocol=Protocol.LL),
    ),
    parameters=(("BUFFSIZE", 8 << 20),),
)


@pytest.fixture
def runner(library, tmp_path):
    """Make a runner whose stand-in was told these words."""

    def make(fault="", delegate="", **told):
        programs, scratch = tmp_path / "build", tmp_path / "scratch"
        programs.mkdir()
        scratch.mkdir()
        nccl_tests_stand_in.install(programs, **told)
        environ = {**os.environ, "STAND_IN": fault}
        return TableRunner(
            plugin=library,
            benchmark=NcclTests(folder=programs, features=NcclTestsFeatures(json=True)),
            launcher=LocalLauncher(environment=environ, keep_env=split_variables(environ).of_job),
            cluster=CLUSTER,
            variables=lambda setting: {f"NCCL_{name}": str(value) for name, value in setting.parameters},
            scratch=scratch,
            delegate=delegate,
        )

    return make


def factors(result):
    """How much slower than the NCCL default each message was: 2 for a tree."""
    assert (result.outcome, result.detail) == (Outcome.OK, "")
    return [round(m.time_us / (20 + m.message.size_bytes / 10_000), 2) for m in result.measurements]


def test_a_setting_is_forced_call_by_call_and_the_default_is_left_alone(runner, tmp_path):
    found = runner()
    default = found.measure(DEFAULT, MESSAGES, repeat=0)
    assert factors(default) == [1, 1, 1, 1]
    forced = found.measure(TREE, MESSAGES, repeat=0)
    assert factors(forced) == [2, 2, 1, 2], "all_gather has no tree"
    assert {default.by_plugin, forced.by_plugin} == {True}
    assert not list((tmp_path / "scratch").iterdir())


def test_a_whole_policy_is_one_trial(runner):
    found = runner()
    assert found.applies(POLICY)
    assert factors(found.measure_policy(POLICY, MESSAGES, repeat=0)) == [1, 2, 1, 1]
    unnamed = Policy(rules=(Rule(collective=Collective.ALL_REDUCE, algorithm=Algorithm.TREE),))
    assert not found.applies(unnamed)


def test_what_nccl_does_not_offer_is_no_measurement(runner):
    result = runner(lacks=["tree/ll128"]).measure_policy(POLICY, MESSAGES, repeat=0)
    assert result.outcome is Outcome.SUBSTITUTED
    assert "does not offer tree/ll128 for all_reduce here; the NCCL default ran instead" in result.detail
    assert {m.message.collective for m in result.measurements} <= {Collective.ALL_GATHER}


def test_a_plugin_that_is_not_loaded_is_no_measurement(runner):
    found = runner("plugin_not_loaded")
    assert found.measure(TREE, MESSAGES, repeat=0).outcome is Outcome.SUBSTITUTED
    # Nothing is asked for by the default, so nothing can be substituted.
    assert found.measure(DEFAULT, MESSAGES, repeat=0).outcome is Outcome.OK


def test_a_setting_that_no_table_can_carry_is_invalid(runner):
    lone = Setting(protocol=Protocol.LL128)
    assert runner().measure(lone, MESSAGES, repeat=0).outcome is Outcome.INVALID
