"""Confirmation and proof: what is launched, in which order, and what follows from it."""

import itertools
import math
import random
import re
from collections import Counter
from dataclasses import replace

import pytest

from ncclt.core.algorithms import Algorithm, Protocol
from ncclt.core.budget import MIN_BLOCKS
from ncclt.core.message import Collective, Message
from ncclt.core.policy import Policy, Rule
from ncclt.core.recommendation import Decision, Today
from ncclt.core.setting import DEFAULT, Setting
from ncclt.core.study import Arm, Phase
from ncclt.core.trial import Outcome
from ncclt.core.workload import MessageCalls, Provenance, Workload
from ncclt.measure.trial import launch
from ncclt.prove.evidence import collect_evidence, last_proof
from ncclt.prove.interleave import Proof, launch_order, plan_block
from ncclt.prove.proof import build_policy_verdict, describe_blocks, describe_proof, judge_arm
from ncclt.testing.fakes import FakePolicyRunner, FakeRunner, FakeTrialLog

TREE_LL = Setting(algorithm=Algorithm.TREE, protocol=Protocol.LL)
TABLE = Policy(
    rules=(Rule(collective=Collective.ALL_REDUCE, max_bytes=1 << 20, algorithm=Algorithm.TREE, protocol=Protocol.LL),)
)
POLICIES = {Arm.DEFAULT: Policy(), Arm.TABLE: TABLE}


def proof(cluster, workload, time_of, *, trial_log=None, policies=POLICIES, interrupted=lambda: False, **criteria):
    kept = trial_log if trial_log is not None else FakeTrialLog()
    complete = Proof(
        runner=FakeRunner(cluster, time_of),
        workload=workload,
        trial_log=kept,
        policies=policies,
        interrupted=interrupted,
        watch=lambda *_: None,
        **criteria,
    ).run()
    return complete, kept


def judged(trial_log, workload, arm=Arm.TABLE, policy=TABLE):
    return judge_arm(arm, policy, trial_log.trials(), workload, min_effect=0.02)


def launches_of(trial_log, arm):
    return {t.block for t in trial_log.trials() if t.arm is arm}


def noisy(time_of, sigma, seed=0):
    rng = random.Random(seed)
    return lambda setting, message, number: time_of(setting, message, number) * rng.lognormvariate(0, sigma)


def test_without_a_plugin_every_arm_takes_one_launch_per_setting_of_the_policy(workload):
    first = plan_block(POLICIES, workload, 0, whole=False)

    assert sorted((s.block, s.arm, len(s.messages)) for s in first) == sorted(
        (pair, arm, 1) for pair in range(2) for arm in POLICIES for _ in range(2)
    )
    assert {s.setting for s in first if s.arm is Arm.TABLE} == {DEFAULT, TREE_LL}
    by_arm = {arm: [s.messages for s in first if s.arm is arm] for arm in POLICIES}
    assert by_arm[Arm.DEFAULT] == by_arm[Arm.TABLE], "both sides of a comparison are the same sum of launches"


def test_a_policy_that_is_applied_as_a_whole_takes_one_launch_and_the_default_too(workload):
    first = plan_block(POLICIES, workload, 0, whole=True)

    assert [(s.block, len(s.messages)) for s in first] == [(0, 2), (0, 2), (1, 2), (1, 2)]
    assert {(s.arm, s.block): s.policy for s in first} == {
        (arm, pair): None if arm is Arm.DEFAULT else TABLE for arm in POLICIES for pair in range(2)
    }


def test_a_policy_that_hangs_other_groups_is_not_measured_on(cluster):
    """The default is not asked for the calls of the gate, and a policy without such channels has no gate."""
    own = Message(collective=Collective.SEND_RECV, dtype="float32", size_bytes=1 << 20, group_size=2)
    pipeline = Workload(
        name="w", messages=(MessageCalls(message=own, calls_per_step=1.0),), provenance=Provenance(source="test")
    )
    gated, chunk = Policy(parameters=(("MIN_P2P_NCHANNELS", 32),)), Policy(parameters=(("BUFFSIZE", 1 << 20),))

    def hangs(setting, message, _number):
        if message.group_size == 4:
            return Outcome.TIMEOUT
        return 9.0 if setting.parameters else 10.0

    for policy, decision in ((gated, Decision.KEEP_DEFAULT), (chunk, Decision.TUNED)):
        arms = {Arm.DEFAULT: Policy(), Arm.TABLE: policy}
        _, trial_log = proof(cluster, pipeline, hangs, policies=arms, covers=lambda *_: True)
        verdict = judge_arm(Arm.TABLE, policy, trial_log.trials(), pipeline, min_effect=0.02)
        assert verdict.decision is decision, verdict
        assert all(t.result.outcome is Outcome.OK for t in trial_log.trials() if t.arm is Arm.DEFAULT)


def test_every_order_of_the_arms_is_equally_probable_in_every_pair(workload):
    three = [*POLICIES, Arm.VARIABLES]
    for pair in (0, 1):
        orders = Counter(tuple(launch_order(three, pair, seed=str(seed))) for seed in range(1200))
        assert len(orders) == 6
        assert all(150 < count < 250 for count in orders.values())

    def arms(seed):
        return [s.arm for block in range(50) for s in plan_block(POLICIES, workload, block, whole=True, seed=seed)]

    assert arms("a") == arms("a") != arms("b")


def test_what_fails_before_the_default_was_launched_shows_nothing_of_the_policy(cluster, workload):
    """Whichever arm a pair begins with; a machine on which nothing runs disqualifies no policy."""
    for seed in "abcdefgh":
        _, trial_log = proof(cluster, workload, lambda *_: Outcome.CRASHED, seed=seed)
        assert judged(trial_log, workload).decision is Decision.UNDECIDED
        assert {t.arm for t in trial_log.trials()} >= {Arm.DEFAULT}


def test_a_runner_that_applies_policies_is_given_the_whole_one(cluster, workload, landscape):
    trial_log = FakeTrialLog()
    runner = FakePolicyRunner(cluster, landscape)
    Proof(
        runner=runner,
        workload=workload,
        trial_log=trial_log,
        policies=POLICIES,
        interrupted=lambda: "",
        watch=lambda *_: None,
    ).run()

    kept = trial_log.trials()
    assert {(t.arm, t.policy) for t in kept} == {(Arm.DEFAULT, None), (Arm.TABLE, TABLE)}
    assert len(kept) == 4 * judged(trial_log, workload).blocks
    assert {t.label for t in kept} == {"default", "policy of 1 rule"}
    assert judged(trial_log, workload).speedup == pytest.approx(1200 / 1100)


def test_a_proof_of_an_earlier_order_goes_on(cluster, workload, landscape):
    """Trials are matched within their pair, so a proof that was begun with other coins is not lost."""
    runs = itertools.count()
    _, trial_log = proof(cluster, workload, landscape, seed="then", interrupted=lambda: next(runs) >= 13)
    before = list(trial_log.trials())

    proof(cluster, workload, landscape, trial_log=trial_log, seed="now")

    assert list(trial_log.trials())[:13] == before
    assert len(last_proof(trial_log.trials())) == len(trial_log.trials())


def test_a_true_gain_is_proven_from_the_sums_of_the_parts(cluster, workload, landscape):
    complete, trial_log = proof(cluster, workload, landscape)

    verdict = judged(trial_log, workload)
    assert complete
    assert verdict.decision is Decision.TUNED
    assert (verdict.default_us, verdict.policy_us) == (1200.0, 1100.0)
    assert verdict.blocks == 4, "eight pairs that all agree"


def test_a_wrong_result_disqualifies_the_policy_and_ends_its_launches(cluster, workload, landscape):
    def wrong(setting, message, number):
        return Outcome.WRONG_RESULT if setting == TREE_LL else landscape(setting, message, number)

    _, trial_log = proof(cluster, workload, wrong)

    verdict = judged(trial_log, workload)
    assert verdict.decision is Decision.KEEP_DEFAULT
    assert "wrong_result" in verdict.reason
    assert sum(t.setting == TREE_LL for t in trial_log.trials()) == 1


def test_one_disqualified_arm_does_not_stop_the_other(cluster, workload, landscape):
    ring = Policy(rules=(Rule(collective=Collective.ALL_REDUCE, algorithm=Algorithm.RING, protocol=Protocol.LL),))

    def wrong(setting, message, number):
        return Outcome.CRASHED if setting.algorithm is Algorithm.RING else landscape(setting, message, number)

    _, trial_log = proof(cluster, workload, wrong, policies={**POLICIES, Arm.VARIABLES: ring})

    assert judged(trial_log, workload).decision is Decision.TUNED
    assert judged(trial_log, workload, Arm.VARIABLES, ring).decision is Decision.KEEP_DEFAULT


def test_a_default_that_fails_ends_the_proof(cluster, workload, landscape):
    steps = [step for block in range(2) for step in plan_block(POLICIES, workload, block, whole=False)]
    last = next(number for number, step in enumerate(steps) if step.block == 2 and step.arm is Arm.DEFAULT)

    def breaks(setting, message, number):
        return Outcome.CRASHED if number == last else landscape(setting, message, number)

    _, trial_log = proof(cluster, workload, breaks)

    assert trial_log.trials()[-1].result.outcome is Outcome.CRASHED
    verdict = judged(trial_log, workload)
    assert verdict.decision is Decision.UNDECIDED
    assert "the NCCL default failed in the A/B test" in verdict.reason


def test_noise_takes_more_blocks_and_a_decided_arm_is_launched_no_more(cluster, workload, landscape):
    """The table gains a tenth; the variables gain 3 %, which 4 % of noise hides."""
    same = Policy(rules=(Rule(collective=Collective.ALL_REDUCE, algorithm=Algorithm.RING, protocol=Protocol.LL),))

    def time_of(setting, message, number):
        ring = setting.algorithm is Algorithm.RING
        return landscape(DEFAULT if ring else setting, message, number) / (1.03 if ring else 1)

    _, trial_log = proof(cluster, workload, noisy(time_of, 0.04), policies={**POLICIES, Arm.VARIABLES: same}, blocks=10)

    assert judged(trial_log, workload).decision is Decision.TUNED
    assert judged(trial_log, workload, Arm.VARIABLES, same).decision is not Decision.TUNED
    assert MIN_BLOCKS <= len(launches_of(trial_log, Arm.TABLE)) / 2 < 10
    assert launches_of(trial_log, Arm.VARIABLES) == launches_of(trial_log, Arm.DEFAULT) == set(range(20))


def test_a_proof_that_was_cut_off_goes_on_and_ends_as_it_would_have(cluster, workload, landscape):
    whole = proof(cluster, workload, noisy(landscape, 0.03))[1]
    assert len(launches_of(whole, Arm.TABLE)) > 2 * MIN_BLOCKS

    times = noisy(landscape, 0.03)
    trial_log = None
    for budget in (7, 5, 1, 1000):
        runs = itertools.count()
        complete, trial_log = proof(
            cluster,
            workload,
            times,
            trial_log=trial_log,
            interrupted=lambda runs=runs, budget=budget: next(runs) >= budget,
        )

    assert complete
    assert [t.score_us for t in trial_log.trials()] == [t.score_us for t in whole.trials()]
    assert judged(trial_log, workload) == judged(whole, workload)


def test_an_undecided_proof_goes_on_with_more_blocks(cluster, workload, landscape):
    times = noisy(landscape, 0.4)
    _, trial_log = proof(cluster, workload, times, blocks=5)
    assert judged(trial_log, workload).decision is Decision.UNDECIDED
    before = list(trial_log.trials())

    proof(cluster, workload, times, trial_log=trial_log, blocks=7)

    assert list(trial_log.trials())[: len(before)] == before
    assert len(launches_of(trial_log, Arm.TABLE)) == 14


def test_a_proof_of_another_policy_starts_anew(cluster, workload, landscape):
    ring = Policy(rules=(Rule(collective=Collective.ALL_REDUCE, algorithm=Algorithm.RING, protocol=Protocol.LL),))
    _, trial_log = proof(cluster, workload, landscape, policies={Arm.DEFAULT: Policy(), Arm.TABLE: ring})

    proof(cluster, workload, landscape, trial_log=trial_log)

    assert {t.setting for t in last_proof(trial_log.trials()) if t.arm is Arm.TABLE} == {DEFAULT, TREE_LL}
    assert judged(trial_log, workload).decision is Decision.TUNED


def test_each_launch_is_told_with_the_blocks_before_it_and_their_pairs(cluster, workload, landscape):
    told = []
    runner, trial_log = FakeRunner(cluster, landscape), FakeTrialLog()
    Proof(
        runner=runner,
        workload=workload,
        trial_log=trial_log,
        policies=POLICIES,
        interrupted=lambda: False,
        watch=lambda *row: told.append(row),
    ).run()

    assert [trial for trial, _, _ in told] == list(trial_log.trials())
    assert [block for _, block, _ in told] == [t.block // 2 for t in trial_log.trials()]
    assert [pairs.blocks if pairs else 0 for _, _, pairs in told] == [block for _, block, _ in told]


def test_every_block_is_told_with_what_it_decided(cluster, workload, landscape):
    _, trial_log = proof(cluster, workload, noisy(landscape, 0.03))

    rows = describe_blocks(Arm.TABLE, TABLE, trial_log.trials(), workload, min_effect=0.02)

    assert [row["block"] for row in rows] == list(range(len(rows)))
    assert {row["decision"] for row in rows[:-1]} == {Decision.UNDECIDED}
    last = judged(trial_log, workload).to_document()
    assert {name: rows[-1][name] for name in ("speedup", "interval", "decision")}.items() <= last.items()
    for row in rows:
        for default, policy, ratio in zip(row["default_us"], row["policy_us"], row["log_ratios"], strict=True):
            assert math.exp(ratio) == pytest.approx(default / policy)


def test_more_search_makes_the_old_evidence_worthless(cluster, workload, landscape):
    _, trial_log = proof(cluster, workload, landscape)
    launch(FakeRunner(cluster, landscape), workload, trial_log, TREE_LL, phase=Phase.SEARCH)

    assert last_proof(trial_log.trials()) == []
    assert collect_evidence(trial_log.trials()).launches == ()


RING_LARGE = Rule(collective=Collective.ALL_REDUCE, min_bytes=2 << 20, algorithm=Algorithm.RING, protocol=Protocol.LL)


def losing_large(landscape):
    """The small message wins much, the large one has a rule and loses 5 %: more than any message may."""

    def time_of(setting, message, number):
        if setting.algorithm is Algorithm.RING:
            return 1050.0
        return 1.0 if setting.algorithm is Algorithm.TREE else landscape(setting, message, number)

    return time_of


def test_a_message_of_weight_that_loses_is_left_to_nccl_and_the_rest_is_delivered(cluster, workload, landscape):
    policy = Policy(rules=(*TABLE.rules, RING_LARGE))
    _, trial_log = proof(
        cluster, workload, losing_large(landscape), policies={Arm.DEFAULT: Policy(), Arm.TABLE: policy}
    )

    found = build_policy_verdict(Arm.TABLE, policy, trial_log.trials(), workload, min_effect=0.02)
    assert found.verdict.decision is Decision.TUNED
    assert found.policy == TABLE
    assert judge_arm(Arm.TABLE, TABLE, trial_log.trials(), workload, min_effect=0.02) == found.verdict
    (note,) = [n for n in describe_proof(trial_log.trials(), workload, found) if "left at the NCCL default" in n]
    assert workload.messages[0].message.label in note
    assert workload.messages[1].message.label not in note


def test_where_no_message_can_be_left_out_one_that_loses_vetoes_the_policy(cluster, workload, landscape):
    """Process-wide parameters reach all messages, and so do variables."""
    for arm, parameters in ((Arm.TABLE, (("BUFFSIZE", 1 << 22),)), (Arm.VARIABLES, ())):
        policy = Policy(rules=(*TABLE.rules, RING_LARGE), parameters=parameters)
        _, trial_log = proof(cluster, workload, losing_large(landscape), policies={Arm.DEFAULT: Policy(), arm: policy})

        found = build_policy_verdict(arm, policy, trial_log.trials(), workload, min_effect=0.02)
        assert found.verdict.decision is Decision.KEEP_DEFAULT
        assert "5.0 % slower, more than 3 %" in found.verdict.reason
        assert found.policy == policy


def test_a_message_that_shares_its_size_with_another_is_not_left_out(cluster, landscape):
    """NCCL's tuner sees bytes only, so the other one would lose its rule too."""
    both = Workload(
        name="w",
        messages=tuple(
            MessageCalls(
                message=Message(collective=Collective.ALL_REDUCE, dtype=dtype, size_bytes=4096, group_size=8),
                calls_per_step=1.0,
            )
            for dtype in ("float32", "bfloat16")
        ),
        provenance=Provenance(source="test"),
    )

    def time_of(setting, message, _number):
        return {True: 1000.0, False: 1050.0 if message.dtype == "float32" else 800.0}[setting.is_default]

    _, trial_log = proof(cluster, both, time_of)
    assert judged(trial_log, both).decision is Decision.KEEP_DEFAULT


def test_each_arm_is_measured_as_it_is_delivered(cluster, workload):
    """Where a plugin forces settings, the variables' arm is forced by variables all the same."""
    runner, by_variables, trial_log = (
        FakeRunner(cluster, lambda *_: 10.0),
        FakeRunner(cluster, lambda *_: 8.0),
        FakeTrialLog(),
    )
    uniform = Policy(rules=(replace(TABLE.rules[0], max_bytes=None),))

    Proof(
        runner=runner,
        workload=workload,
        trial_log=trial_log,
        policies={**POLICIES, Arm.VARIABLES: uniform},
        runners={Arm.VARIABLES: by_variables},
        interrupted=lambda: False,
        watch=lambda *_: None,
    ).run()

    times = {arm: {m.time_us for t in trial_log.trials() if t.arm is arm for m in t.result.measurements} for arm in Arm}
    assert times == {Arm.DEFAULT: {10.0}, Arm.TODAY: set(), Arm.TABLE: {10.0}, Arm.VARIABLES: {8.0}}
    assert set(by_variables.launches) == {TREE_LL}


def proof_of_today(cluster, workload, *, default_us, today_us, table_us=None):
    """Prove a table, or nothing, where the job sets tuning variables today; invented times of every message."""
    trial_log = FakeTrialLog()
    policies = {Arm.DEFAULT: Policy(), Arm.TODAY: Policy()} | ({} if table_us is None else {Arm.TABLE: TABLE})
    assert Proof(
        runner=FakeRunner(cluster, noisy(lambda setting, *_: default_us if setting.is_default else table_us, 0.002)),
        workload=workload,
        trial_log=trial_log,
        policies=policies,
        runners={Arm.TODAY: FakeRunner(cluster, noisy(lambda *_: today_us, 0.002, seed=1))},
        interrupted=lambda: "",
        watch=lambda *_: None,
    ).run()
    return trial_log


def test_settings_of_today_that_cost_time_are_found_without_any_policy(cluster, workload):
    trial_log = proof_of_today(cluster, workload, default_us=10.0, today_us=10.6)
    verdict = judge_arm(Arm.DEFAULT, Policy(), trial_log.trials(), workload, min_effect=0.02, baseline=Arm.TODAY)
    assert (verdict.decision, round(verdict.speedup, 2)) == (Decision.TUNED, 1.06)
    today = Today(variables=(("NCCL_PROTO", "Simple"),), default=verdict)
    said = r"your settings cost [56]\.\d % \(95 % CI [0-9. to]+\): unset NCCL_PROTO"
    assert re.fullmatch(said, today.words), today.words


def test_a_policy_is_judged_by_what_the_job_runs_today(cluster, workload):
    """Both gains are known: that over the default holds for every job, that over today for this user."""
    alone = replace(
        workload, messages=tuple(c for c in workload.messages if not TABLE.setting_for(c.message).is_default)
    )
    slow = proof_of_today(cluster, alone, default_us=10.0, today_us=11.0, table_us=9.0)
    found = build_policy_verdict(Arm.TABLE, TABLE, slow.trials(), alone, min_effect=0.02)
    assert (found.verdict.decision, found.over_today.decision) == (Decision.TUNED, Decision.TUNED)
    assert found.verdict.speedup == pytest.approx(10 / 9, rel=0.01)
    assert found.over_today.speedup == pytest.approx(11 / 9, rel=0.01)

    fast = proof_of_today(cluster, alone, default_us=10.0, today_us=8.9, table_us=9.0)
    found = build_policy_verdict(Arm.TABLE, TABLE, fast.trials(), alone, min_effect=0.02)
    assert (found.verdict.decision, found.over_today.decision) == (Decision.TUNED, Decision.KEEP_DEFAULT)
    assert not found.beats_today
