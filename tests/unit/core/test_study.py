"""A study and its trials as people read them, and what they cost."""

from ncclt.core.message import Collective
from ncclt.core.policy import Policy, Rule
from ncclt.core.setting import DEFAULT, Setting
from ncclt.core.study import Phase, Trial, gpu_seconds
from ncclt.core.trial import Outcome, TrialResult
from ncclt.testing.samples import sample_cluster


def trial(policy=None, *, phase=Phase.SEARCH, setting=DEFAULT, wall_s=0.0):
    return Trial(
        number=0,
        phase=phase,
        setting=setting,
        repeat=0,
        score_us=None,
        policy=policy,
        result=TrialResult(outcome=Outcome.CRASHED, wall_s=wall_s),
    )


def rules(count):
    return tuple(Rule(collective=Collective.ALL_REDUCE, group_size=size + 2, channels=4) for size in range(count))


def test_a_trial_says_what_was_forced(subtests):
    for shown, label in [
        (trial(), "default"),
        (trial(setting=Setting(channels=4)), "c=4"),
        (trial(Policy()), "policy of 0 rules"),
        (trial(Policy(rules=rules(1))), "policy of 1 rule"),
        (trial(Policy(rules=rules(2))), "policy of 2 rules"),
    ]:
        with subtests.test(shown=shown, label=label):
            assert shown.label == label


def test_neither_a_policy_nor_a_part_of_a_proof_tries_a_setting(subtests):
    for launched, tries in [
        (trial(), True),
        (trial(phase=Phase.CONFIRM), True),
        (trial(phase=Phase.PROVE), False),
        (trial(Policy(), phase=Phase.CONFIRM), False),
    ]:
        with subtests.test(launched=launched, tries=tries):
            assert launched.tries_setting is tries


def test_a_launch_costs_its_time_on_every_gpu_of_the_cluster():
    cluster = sample_cluster()
    assert cluster.world_size == 8
    assert gpu_seconds([trial(wall_s=10.0), trial(wall_s=2.5)], cluster) == 100.0
    assert gpu_seconds([], cluster) == 0
