"""The application service: from two environments to a verdict, with a launcher that plays the training."""

import itertools
import json
import random
from dataclasses import fields, replace
from pathlib import Path

import pytest

from ncclt.core.attestation import Form
from ncclt.core.nccl_version import NcclVersion
from ncclt.core.policy import Policy, uniform_policy
from ncclt.core.recommendation import Decision, PolicyVerdict
from ncclt.core.verification import Side, Verification
from ncclt.errors import NodesLostError, NoRecommendationError, NotStartedError, StudyStoppedError, UsageError
from ncclt.launch.launcher import LaunchPlan, LaunchResult
from ncclt.prove.comparison import Comparison
from ncclt.prove.step_times import InterruptedComparisonError, VerifyRequest, find_open, verify
from ncclt.prove.tuned_arm import plan_tuned_arm, require_measurable
from ncclt.testing.samples import RING, sample_recommendation

STEPS = 20


class PlayedTraining:
    """A launcher whose ranks write the journals that the hook would write.

    `play` gives for a launch, by its variables and number, the times of each rank in s, or how it ends.
    """

    name = "played"

    def __init__(self, play):
        self._play = play
        self.plans = []

    def plan(self, argv, *, variables, timeout_s, files=()):
        return LaunchPlan(argv=tuple(argv), set_env=tuple(sorted(variables.items())), timeout_s=timeout_s)

    def run(self, plan):
        variables = dict(plan.set_env)
        played = self._play(variables, len(self.plans))
        self.plans.append(plan)
        if isinstance(played, LaunchResult):
            return played
        folder = Path(variables["PYTHONPATH"].partition(":")[0]).parent
        assert json.loads((folder / "inject" / "recording.json").read_text())["times_only"]
        for rank, inside_s in enumerate(played):
            journal = {
                "host": "a",
                "rank": rank,
                "world_size": 3,
                "state": "recorded",
                "steps_seen": 9,
                "inside_s": inside_s,
                "outside_s": [],
                "write_s": 0.0,
                "failures": [],
            }
            (folder / "ranks" / f"{rank}.json").write_text(json.dumps(journal))
        return LaunchResult(exit_code=0)

    def kill(self):
        raise AssertionError("nobody is asked to end anything")


def _verify(tmp_path, play, *, environ=None, earlier=(), **options):
    how = {one.name: options.pop(one.name) for one in fields(Comparison) if one.name in options}
    request = VerifyRequest(
        **{"argv": ("train",), "base_env": (), "tuned_env": (("X", "1"),)} | options,
        how=Comparison(**{"steps": 2, "warmup": 1, "directory": tmp_path} | how),
    )
    launcher = PlayedTraining(play)
    seen = []
    made = verify(
        request,
        launcher,
        environ=environ or {},
        earlier=earlier,
        watch=lambda launch, _result: seen.append(launch),
        now=lambda: "t",
    )
    assert not list(tmp_path.iterdir())
    return made, launcher, seen


def _by_side(base_s, tuned_s):
    noise = itertools.cycle((1.0, 1.001, 0.999, 1.0005))

    def play(variables, _number):
        time_s = (tuned_s if "X" in variables else base_s) * next(noise)
        return [[time_s] * STEPS, [time_s / 2] * STEPS]

    return play


def test_faster_steps_are_a_gain_and_slower_ones_none(tmp_path):
    faster, launcher, seen = _verify(tmp_path, _by_side(0.11, 0.10), steps=STEPS)
    assert faster.verdict.decision is Decision.TUNED
    assert faster.verdict.speedup == pytest.approx(1.1, rel=0.01)
    assert faster.verdict.reason.startswith("training steps are faster: +")
    assert (faster.verdict.default_us, faster.verdict.policy_us) == pytest.approx((1.1e5, 1e5), rel=0.01)
    sides = [launch.side for launch in seen]
    assert all(set(pair) == set(Side) for pair in zip(sides[::2], sides[1::2], strict=True))
    assert ["X" in dict(plan.set_env) for plan in launcher.plans] == [side is Side.TUNED for side in sides]
    slower, *_ = _verify(tmp_path, _by_side(0.10, 0.11))
    assert slower.verdict.decision is Decision.KEEP_DEFAULT


@pytest.mark.parametrize(("share", "factor"), [(0.06, 4), (0.1, 3), (0.03, 10)])
def test_an_arm_that_is_faster_in_most_steps_and_stalls_in_some_is_not_tuned(tmp_path, share, factor):
    """By the median it is 12 % faster; the training takes longer with it."""
    rng = random.Random(1)

    def play(variables, _number):
        usual_s = 0.1 / 1.12 if "X" in variables else 0.1
        stalls = "X" in variables
        return [
            [usual_s * rng.gauss(1, 0.01) * (factor if stalls and rng.random() < share else 1) for _ in range(STEPS)]
        ]

    made, *_ = _verify(tmp_path, play, blocks=24, steps=STEPS)
    assert made.verdict.decision is not Decision.TUNED


def test_evaluations_at_the_same_step_of_each_launch_are_of_no_side(tmp_path):
    def play(variables, _number):
        return [[2.0 if step == 7 else 0.1 / (1.12 if "X" in variables else 1.0) for step in range(STEPS)]]

    made, *_ = _verify(tmp_path, play, steps=STEPS)
    assert made.verdict.decision is Decision.TUNED
    assert made.verdict.blocks == 4


def test_a_stall_at_the_same_step_of_each_tuned_launch_is_no_pause_of_the_training(tmp_path):
    def play(variables, _number):
        return [
            [4.0 if "X" in variables and step == 7 else 0.1 / (1.1 if "X" in variables else 1.0) for step in range(200)]
        ]

    made, *_ = _verify(tmp_path, play, steps=200)
    assert made.verdict.decision is not Decision.TUNED


def test_a_gain_leads_until_enough_steps_rule_out_stalls(tmp_path):
    def play(variables, number):
        return [[(0.095 if "X" in variables else 0.1) * (1 + number % 3 / 1000)] * 10]

    made, *_ = _verify(tmp_path, play, steps=10, blocks=4)
    assert made.verdict.decision is Decision.UNDECIDED
    assert "leading, but 80 steps are too few to rule out stalls that cancel it" in made.verdict.reason
    made, *_ = _verify(tmp_path, play, steps=10)
    assert made.verdict.decision is Decision.TUNED
    assert made.verdict.blocks > 4


def _order(**options):
    both = {"argv": ("train",), "base_env": (), "tuned_env": (("X", "1"),), "how": Comparison(blocks=40)}
    return VerifyRequest(**both | options).order


def test_a_coin_decides_each_pair():
    orders = [_order(argv=("train", str(seed))) for seed in range(8)]
    assert len(set(orders)) == 8
    assert {order[0] for order in orders} == set(Side)
    begins = [order[first] for order in orders for first in range(0, 160, 2)]
    assert 0.4 < begins.count(Side.BASE) / len(begins) < 0.6
    assert _order() == _order(tuned_env=(("X", "another folder"),)), "what is resumed has the same order"
    assert _order(how=Comparison(blocks=4)) == _order()[:16]


@pytest.mark.parametrize("seed", range(4))
def test_a_disturbance_with_a_rhythm_is_no_gain(tmp_path, seed):
    """Launches 0, 3, 4, 7 ... are slow: with a fixed order A B B A these would all be those of the base."""
    slow = itertools.cycle((1.1, 1.0, 1.0, 1.1))
    made, *_ = _verify(tmp_path, lambda _variables, _number: [[0.1 * next(slow)] * 2], argv=("train", str(seed)))
    assert made.verdict.decision is not Decision.TUNED


def test_gain_below_the_minimum_is_none(tmp_path):
    made, *_ = _verify(tmp_path, _by_side(0.11, 0.10), min_effect=0.2)
    assert made.verdict.decision is Decision.KEEP_DEFAULT
    assert "below the 20 % threshold" in made.verdict.reason


def test_drift_is_no_gain(tmp_path):
    made, *_ = _verify(tmp_path, lambda _variables, number: [[0.1 * (1 + number / 50)] * 2])
    assert made.verdict.decision is Decision.KEEP_DEFAULT


def test_missing_ranks_and_uneven_steps_are_told(tmp_path):
    made, *_ = _verify(tmp_path, lambda _variables, _number: [[0.1, 0.1, 1.0]], steps=3)
    assert "1 of 3 ranks" in made.notes[0]
    assert "uneven" in made.notes[1]
    assert (made.ranks, made.hosts) == (1, 1)


def test_environments_join_those_that_are_there(tmp_path):
    def play(variables, _number):
        assert variables["PYTHONPATH"].endswith("/inject:/mine" if "X" in variables else "/inject:/theirs")
        return [[0.1, 0.1]]

    own = (("PYTHONPATH", "/mine"), ("X", "1"))
    made, *_ = _verify(tmp_path, play, environ={"PYTHONPATH": "/theirs"}, tuned_env=own)
    assert made.tuned_env == own


def test_open_mpi_is_told_the_variables_of_a_side(tmp_path):
    made, launcher, _ = _verify(
        tmp_path, lambda _variables, _number: [[0.1, 0.1]], argv=("mpirun", "train"), open_mpi=frozenset(Side)
    )
    for plan, side in zip(launcher.plans, (one.side is Side.TUNED for one in made.launches), strict=True):
        forwarded = {name for option, name in itertools.pairwise(plan.argv) if option == "-x"}
        assert "PYTHONPATH" in forwarded
        assert ("X" in forwarded) is side


@pytest.mark.parametrize("base_argv", [(), ("other",)])
def test_a_training_that_cannot_be_started_is_no_verdict(tmp_path, base_argv):
    """Whichever side comes first; of two commands the judged one is a word of the user's in every launch."""
    gone = LaunchResult(exit_code=None, not_started="cannot start trian: No such file or directory")
    for value in "1234":  # the order follows from the request
        with pytest.raises(StudyStoppedError, match="cannot start trian") as caught:
            _verify(
                tmp_path,
                lambda variables, _number: gone if "X" in variables or not base_argv else [[0.1, 0.1]],
                tuned_env=(("X", value),),
                base_argv=base_argv,
            )
        assert "check its name and path" in caught.value.hint


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (LaunchResult(exit_code=1, stderr="a\n" * 99 + "last words"), "exit code 1\n" + "a\n" * 19 + "last words"),
        (LaunchResult(exit_code=-9, timed_out=True), "ended after 1800 s (--timeout)"),
        (LaunchResult(exit_code=None, not_started="cannot start train"), "cannot start train"),
        (LaunchResult(exit_code=0, survivors=(7,)), "its processes 7 could not be ended"),
        (
            LaunchResult(exit_code=0, stdout="x" * 9999),
            "no step times: no Python process of the command was reached\n" + "x" * 4000,
        ),
    ],
)
def test_failures_stop_the_base_and_disqualify_the_tuned_side(tmp_path, result, said):
    with pytest.raises(StudyStoppedError) as caught:
        _verify(tmp_path, lambda _variables, _number: result)
    assert said in caught.value.message
    assert ("check its name and path" in caught.value.hint) is bool(result.not_started)
    assert not list(tmp_path.iterdir())
    for seed in "1234":  # the order follows from the request
        if result.not_started:  # says nothing about the tuned variables, whichever side came first
            with pytest.raises(NotStartedError, match="cannot start train"):
                _verify(
                    tmp_path,
                    lambda variables, _number: result if "X" in variables else [[0.1, 0.1]],
                    argv=("train", seed),
                )
            continue
        made, launcher, _ = _verify(
            tmp_path, lambda variables, _number: result if "X" in variables else [[0.1, 0.1]], argv=("train", seed)
        )
        assert made.verdict.decision is Decision.KEEP_DEFAULT
        assert made.verdict.reason.startswith("the policy failed")
        assert len(launcher.plans) == 2
        assert (made.ranks, made.hosts) == (1, 1), "those of the base, also where it was launched last"
        (failed,) = [one for one in made.launches if one.side is Side.TUNED]
        assert (failed.failure, failed.step_us) == (said, ())


@pytest.mark.parametrize("launched", [0, 1, 4, 10])
def test_interruption_loses_no_launch_and_leaves_no_file(tmp_path, launched):
    by_side = _by_side(0.11, 0.10)

    def play(variables, number):
        if number == launched:
            raise KeyboardInterrupt
        return by_side(variables, number)

    with pytest.raises(InterruptedComparisonError) as caught:
        _verify(tmp_path, play, steps=STEPS)
    assert not list(tmp_path.iterdir())
    done = caught.value.done
    assert len(done.launches if done else ()) == launched
    if done:
        request = VerifyRequest(
            argv=("train",),
            base_env=(),
            tuned_env=(("X", "1"),),
            recommendation="r",
            how=Comparison(steps=STEPS, warmup=1),
        )
        earlier = find_open([done], request)
        assert earlier == done.launches
        assert not find_open([done], replace(request, recommendation="")), "it may be another training"
        assert not find_open([done], replace(request, argv=("train", "--other")))
        resumed, launcher, _ = _verify(tmp_path, _by_side(0.11, 0.10), earlier=earlier, steps=STEPS)
        assert len(launcher.plans) == 16 - launched
        assert resumed.launches[:launched] == done.launches
        assert [launch.order for launch in resumed.launches] == list(range(16))
        assert resumed.verdict.decision is Decision.TUNED
        assert not find_open([resumed, done], request), "it is decided"


def test_requests_that_make_no_sense_are_refused(tmp_path, subtests):
    cases = [
        {"blocks": 2},
        {"min_effect": 1.0},
        {"timeout_s": 0.0},
        {"timeout_s": float("inf")},
        {"blocks": 10**23},
        {"steps": 10**23},
        {"warmup": 0},
        {"tuned_env": ()},
        {"steps": 0},
        {"argv": ()},
    ]
    for options in cases:
        with subtests.test(options=options):
            with pytest.raises(UsageError):
                _verify(tmp_path, _by_side(1, 1), **options)
            assert not list(tmp_path.iterdir())


def test_a_recommendation_is_delivered_as_a_job_gets_it(tmp_path):
    published = sample_recommendation("a")
    policy = uniform_policy(RING, published.collectives, version=NcclVersion(2, 28, 9))
    proven = published.table.verdict
    both = replace(published, variables=PolicyVerdict(policy=policy, verdict=proven))
    plugin = tmp_path / "plugin.so"

    def given(recommendation, *, plugin=None, argv=("train",), **environ):
        return plan_tuned_arm(recommendation, argv, environ=environ, plugin=plugin, folder=tmp_path)

    handover = given(both, plugin=plugin)
    assert (handover.form, dict(handover.set_env)["NCCL_TUNER_PLUGIN"]) == (Form.TABLE, str(plugin))
    assert dict(handover.set_env)["NCCLT_TABLE"].startswith("1:a:2.28.9:")
    handover = given(both)
    assert handover.form is Form.VARIABLES
    assert dict(handover.set_env)["NCCL_BUFFSIZE"] == "8388608"
    assert "tuner plugin not found" in handover.notes[0]
    for recommendation in (published, replace(published, variables=PolicyVerdict(policy=Policy(), verdict=proven))):
        with pytest.raises(UsageError, match="needs the tuner plugin"):
            given(recommendation)
    for refused in ({"NCCL_ALGO": "Tree"}, {"argv": ("env", "NCCL_ALGO=Tree", "train")}):
        with pytest.raises(NoRecommendationError, match="NCCL_ALGO=Tree"):
            given(both, plugin=plugin, **refused)
    kept = replace(proven, decision=Decision.KEEP_DEFAULT, reason="no gain")
    with pytest.raises(NoRecommendationError, match=r"nothing to verify: .*no gain") as caught:
        given(replace(published, table=replace(published.table, verdict=kept)), plugin=plugin)
    assert "--against" in caught.value.hint
    simulated = replace(published, table=replace(published.table, verdict=kept), simulated=True)
    with pytest.raises(NoRecommendationError, match=r"no gain \(SIMULATED\)$"):
        given(simulated, plugin=plugin)


@pytest.mark.parametrize("launcher", ["simulate", "replay"])
def test_what_no_gpu_measured_needs_one_to_be_verified(launcher):
    unmeasured = replace(sample_recommendation("a"), simulated=launcher == "simulate", launcher=launcher)
    with pytest.raises(NoRecommendationError, match="cannot be verified here"):
        require_measurable(unmeasured, ("train",), gpus_visible=False)
    require_measurable(unmeasured, ("train",), gpus_visible=True)
    kept = replace(unmeasured.table, verdict=replace(unmeasured.table.verdict, decision=Decision.KEEP_DEFAULT))
    require_measurable(replace(unmeasured, table=kept), ("train",), gpus_visible=False)  # nothing to verify, anywhere
    require_measurable(unmeasured, ("mpirun", "train"), gpus_visible=False)
    require_measurable(replace(unmeasured, simulated=False, launcher="local"), ("train",), gpus_visible=False)


def test_two_commands_are_launched_in_turn_and_judged_in_words_of_their_own(tmp_path):
    commands = {"argv": ("new",), "base_argv": ("old", "1"), "base_env": (), "tuned_env": ()}
    order = _order(**commands)

    def play(fast):
        noise = itertools.cycle((1.0, 1.001, 0.999, 1.0005))

        def play_one(_variables, number):
            time_s = (0.10 if (order[number] is Side.TUNED) is fast else 0.11) * next(noise)
            return [[time_s] * STEPS]

        return play_one

    faster, launcher, _ = _verify(tmp_path, play(True), steps=STEPS, **commands)
    argv = {Side.BASE: ("old", "1"), Side.TUNED: ("new",)}
    assert [plan.argv for plan in launcher.plans] == [argv[side] for side in order[:16]]
    assert faster.verdict.reason.startswith("speed-up over the command of --against: 1.10x (95 % CI 1.09 to ")
    assert (faster.word, faster.verdict.decision) == ("faster", Decision.TUNED)
    assert Verification.from_document(faster.to_document()) == faster
    slower, *_ = _verify(tmp_path, play(False), steps=STEPS, **commands)
    assert slower.verdict.reason.startswith("speed-up over the command of --against: 0.91x ")
    assert slower.verdict.reason.endswith(": below the 2 % threshold")
    assert slower.word == "not faster"
    same, *_ = _verify(tmp_path, lambda _variables, _number: [[0.1, 0.1]], **commands)
    assert same.verdict.reason.endswith(": below the 2 % threshold")


def test_documents_of_one_command_are_as_before(tmp_path):
    made, *_ = _verify(tmp_path, _by_side(0.11, 0.10), steps=STEPS)
    assert "base_argv" not in made.to_document()
    assert made.word == "tuned"


def test_a_lost_allocation_disqualifies_nobody(tmp_path):
    """Neither side failed, so nothing is concluded."""

    def play(variables, number):
        return LaunchResult(exit_code=143, lost="Slurm job 7 was cancelled") if "X" in variables else [[0.1, 0.1]] * 3

    with pytest.raises(NodesLostError, match="the allocation is lost: Slurm job 7 was cancelled"):
        _verify(tmp_path, play)


def test_neither_command_line_nor_last_lines_are_kept_with_their_secrets(tmp_path):
    """They stand in the store and on pages; the training itself gets its words as they are."""
    argv = ("train", "--api-key", "verysecret", "--lr", "1e-4")

    def play(variables, number):
        return LaunchResult(exit_code=3, stderr="boom at step 7\nHF_TOKEN=verysecret") if "X" in variables else [[1, 1]]

    found, launcher, _ = _verify(tmp_path, play, argv=argv)

    assert "verysecret" not in json.dumps(found.to_document())
    assert "boom at step 7" in json.dumps(found.to_document())
    assert launcher.plans[0].argv == argv


def test_secret_of_a_side_is_removed_from_its_failure(tmp_path):
    def play(variables, number):
        return LaunchResult(exit_code=3, stderr="no: correct horse") if "X" in variables else [[1, 1]]

    found, *_ = _verify(tmp_path, play, tuned_env=(("MY_API_KEY", "correct horse"), ("X", "1")))
    assert [launch.failure for launch in found.launches if launch.failure] == ["exit code 3\nno: [removed]"]
    assert found.tuned_env == (("MY_API_KEY", "[removed]"), ("X", "1"))
