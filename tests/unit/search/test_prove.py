"""Confirmation and proof: what is launched, in which order, and what follows from it."""

import itertools

from ncclt.core.evidence import collect_evidence, last_verification
from ncclt.core.legality import Algorithm, Protocol
from ncclt.core.message import Collective
from ncclt.core.policy import Policy, Rule
from ncclt.core.recommendation import Decision
from ncclt.core.setting import DEFAULT, Setting
from ncclt.core.study import Arm, Phase
from ncclt.core.trial import Outcome
from ncclt.search.confirm import CONFIRMED_LAUNCHES, confirm
from ncclt.search.launching import launch
from ncclt.search.prove import plan, prove, verdict_of
from ncclt.testing.fakes import FakeJournal, FakeRunner

TREE_LL = Setting(algorithm=Algorithm.TREE, protocol=Protocol.LL)
TABLE = Policy(
    rules=(
        Rule(
            collective=Collective.ALL_REDUCE, max_bytes=1 << 20, algorithm=Algorithm.TREE, protocol=Protocol.LL
        ),
    )
)  # fmt: skip
POLICIES = {Arm.DEFAULT: Policy(), Arm.TABLE: TABLE}


def proof(cluster, workload, time_of, *, journal=None, policies=POLICIES, blocks=6, interrupted=lambda: False):
    kept = journal if journal is not None else FakeJournal()
    steps = plan(policies, workload, blocks=blocks)
    complete = prove(
        FakeRunner(cluster, time_of), workload, kept, steps, interrupted=interrupted, watch=lambda *_: None
    )
    return complete, kept


def judged(journal, workload, arm=Arm.TABLE, policy=TABLE):
    return verdict_of(arm, policy, journal.trials(), workload, seed=0, min_effect=0.02)


def test_arms_are_walked_forth_and_back_and_a_policy_takes_one_launch_per_setting(workload):
    steps = plan(POLICIES, workload, blocks=1)

    assert [(s.arm, s.block, len(s.messages)) for s in steps] == [
        (Arm.DEFAULT, 0, 2), (Arm.TABLE, 0, 1), (Arm.TABLE, 0, 1),
        (Arm.TABLE, 1, 1), (Arm.TABLE, 1, 1), (Arm.DEFAULT, 1, 2),
    ]  # fmt: skip


def test_a_true_gain_is_proven_from_the_sums_of_the_parts(cluster, workload, landscape):
    complete, journal = proof(cluster, workload, landscape)

    verdict = judged(journal, workload)
    assert complete
    assert verdict.decision is Decision.TUNED
    assert (verdict.default_us, verdict.policy_us) == (1200.0, 1100.0)


def test_a_wrong_result_disqualifies_the_policy_and_ends_its_launches(cluster, workload, landscape):
    def wrong(setting, message, number):
        return Outcome.WRONG_RESULT if setting == TREE_LL else landscape(setting, message, number)

    _, journal = proof(cluster, workload, wrong)

    verdict = judged(journal, workload)
    assert verdict.decision is Decision.KEEP_DEFAULT
    assert "wrong_result" in verdict.reason
    assert sum(t.setting == TREE_LL for t in journal.trials()) == 1


def test_one_disqualified_arm_does_not_stop_the_other(cluster, workload, landscape):
    ring = Policy(rules=(Rule(collective=Collective.ALL_REDUCE, algorithm=Algorithm.RING, protocol=Protocol.LL),))

    def wrong(setting, message, number):
        return Outcome.CRASHED if setting.algorithm is Algorithm.RING else landscape(setting, message, number)

    _, journal = proof(cluster, workload, wrong, policies={**POLICIES, Arm.VARIABLES: ring})

    assert judged(journal, workload).decision is Decision.TUNED
    assert judged(journal, workload, Arm.VARIABLES, ring).decision is Decision.KEEP_DEFAULT


def test_a_default_that_fails_ends_the_proof(cluster, workload, landscape):
    def breaks(setting, message, number):
        return Outcome.CRASHED if number == 5 else landscape(setting, message, number)

    _, journal = proof(cluster, workload, breaks)

    assert len(journal.trials()) == 6
    assert judged(journal, workload).decision is Decision.KEEP_DEFAULT


def test_a_proof_that_was_cut_off_goes_on_where_it_stopped(cluster, workload, landscape):
    runs = itertools.count()
    complete, journal = proof(cluster, workload, landscape, interrupted=lambda: next(runs) >= 7)
    assert (complete, len(journal.trials())) == (False, 7)

    complete, journal = proof(cluster, workload, landscape, journal=journal)

    assert complete
    assert len(journal.trials()) == len(plan(POLICIES, workload, blocks=6))


def test_more_search_makes_the_old_evidence_worthless(cluster, workload, landscape):
    _, journal = proof(cluster, workload, landscape)
    launch(FakeRunner(cluster, landscape), workload, journal, TREE_LL, phase=Phase.SEARCH)

    assert last_verification(journal.trials()) == []
    assert collect_evidence(journal.trials()).launches == ()


def test_a_message_of_weight_that_loses_vetoes_the_policy(cluster, workload, landscape):
    """The small message wins much, the large one has a rule and loses 5 %: more than any message may."""
    policy = Policy(
        rules=(
            *TABLE.rules,
            Rule(
                collective=Collective.ALL_REDUCE, min_bytes=2 << 20, algorithm=Algorithm.RING, protocol=Protocol.LL
            ),
        )
    )  # fmt: skip

    def time_of(setting, message, number):
        if setting.algorithm is Algorithm.RING:
            return 1050.0
        return 1.0 if setting == TREE_LL else landscape(setting, message, number)

    _, journal = proof(cluster, workload, time_of, policies={Arm.DEFAULT: Policy(), Arm.TABLE: policy})

    verdict = judged(journal, workload, policy=policy)
    assert verdict.decision is Decision.KEEP_DEFAULT
    assert "5.0 % slower" in verdict.reason


def test_finalists_are_launched_until_they_are_confirmed(cluster, workload, landscape):
    runner, journal = FakeRunner(cluster, landscape), FakeJournal()
    for setting in (DEFAULT, TREE_LL):
        launch(runner, workload, journal, setting, phase=Phase.SEARCH)

    times = confirm(runner, workload, journal, interrupted=lambda: False, watch=lambda *_: None)

    assert times.launches == {DEFAULT: CONFIRMED_LAUNCHES, TREE_LL: CONFIRMED_LAUNCHES}
    assert {t.phase for t in journal.trials()[2:]} == {Phase.CONFIRM}


def test_a_lucky_setting_falls_back_and_the_next_one_is_confirmed(cluster, workload):
    """A single fast launch is luck: its median after confirmation decides."""
    lucky = Setting(algorithm=Algorithm.RING, protocol=Protocol.LL)

    def time_of(setting, _message, number):
        if setting == lucky:
            return 1.0 if number == 1 else 50.0
        return 9.0 if setting == TREE_LL else 10.0

    runner, journal = FakeRunner(cluster, time_of), FakeJournal()
    for setting in (DEFAULT, lucky, TREE_LL):
        launch(runner, workload, journal, setting, phase=Phase.SEARCH)

    times = confirm(runner, workload, journal, interrupted=lambda: False, watch=lambda *_: None)

    assert times.launches[TREE_LL] == CONFIRMED_LAUNCHES
    assert all(time > 10.0 for time in times.by_setting[lucky].values())
