"""The gain of each part of a merged workload, by the pairs of launches of the one proof."""

from dataclasses import replace

import pytest
from proof_launches import launch_pairs

from ncclt.core.algorithms import Algorithm, Protocol
from ncclt.core.attestation import Form
from ncclt.core.message import Collective, Message
from ncclt.core.policy import Policy, Rule
from ncclt.core.recommendation import PolicyVerdict
from ncclt.core.study import Arm
from ncclt.core.workload import MessageCalls, Provenance, Workload, merge_workloads
from ncclt.deliver.render.delivery import DeliveredForm
from ncclt.prove.proof import judge_arm
from ncclt.prove.study_summary import measure_parts

SMALL, LARGE = (
    Message(collective=Collective.ALL_REDUCE, dtype="float32", size_bytes=size, group_size=8)
    for size in (4096, 1 << 25)
)
FORCED = {"collective": Collective.ALL_REDUCE, "algorithm": Algorithm.TREE, "protocol": Protocol.LL}
ALL, ONLY_SMALL = Policy(rules=(Rule(**FORCED),)), Policy(rules=(Rule(max_bytes=1 << 20, **FORCED),))


def merge(*parts):
    """Merge parts of (weight, calls of the small message, calls of the large one)."""
    found = []
    for number, (weight, *counts) in enumerate(parts):
        rows = tuple(
            MessageCalls(message=m, calls_per_step=n) for m, n in zip((SMALL, LARGE), counts, strict=True) if n
        )
        found.append((Workload(name=f"part{number}", messages=rows, provenance=Provenance(source="test")), weight))
    return merge_workloads(found, name="fleet", created="")


def proof(workload, pairs, *, arm=Arm.TABLE, policy=ALL):
    """Launch default and policy in turn; `pairs`: (small, large) under the default and under the policy, µs."""
    return launch_pairs(workload, pairs, arm=arm, policy=policy)


def gains(workload, trials, *, form=Form.TABLE, arm=Arm.TABLE, policy=ALL):
    verdict = judge_arm(arm, policy, trials, workload, min_effect=0.02)
    use = DeliveredForm(form=form, proven=PolicyVerdict(policy=policy, verdict=verdict))
    return verdict, measure_parts(use, trials, workload)


def test_each_part_is_timed_by_its_own_calls_and_they_add_up(subtests):
    """The policy helps the small message and hurts the large one; variables may be proven in a table's place."""
    cases = [(Arm.TABLE, Form.TABLE), (Arm.VARIABLES, Form.VARIABLES), (Arm.VARIABLES, None)]
    for arm, form in cases:
        with subtests.test(arm=arm, form=form):
            fleet = merge((3, 10, 0), (1, 0, 2))
            trials = proof(fleet, [((20.0, 1000.0), (10.0, 1100.0))] * 8, arm=arm)
            verdict, (first, second) = gains(fleet, trials, form=form, arm=arm)
            assert (first.name, first.weight, first.default_us, first.policy_us, first.note) == (
                "part0",
                3,
                200,
                pytest.approx(100),
                "",
            )
            assert (second.default_us, second.policy_us) == (2000, pytest.approx(2200))
            assert (first.speedup, second.speedup) == (pytest.approx(2.0), pytest.approx(1 / 1.1))
            assert second.interval[1] < 1 < first.interval[0], "the one that loses is seen to lose"
            assert 3 * first.default_us + second.default_us == pytest.approx(verdict.default_us)
            assert 3 * first.policy_us + second.policy_us == pytest.approx(verdict.paired_policy_us)


def test_noise_of_a_part_that_the_policy_leaves_alone_is_no_gain():
    fleet = merge((1, 1, 0), (1, 0, 1))
    trials = proof(
        fleet, [((20.0, 900.0 + 50 * (n % 3)), (10.0, 1000.0 - 70 * (n % 2))) for n in range(8)], policy=ONLY_SMALL
    )
    _, (first, second) = gains(fleet, trials, policy=ONLY_SMALL)
    assert first.speedup == pytest.approx(2.0)
    assert second.speedup == pytest.approx(1.0)


def test_what_of_a_part_was_not_measured_is_said():
    fleet = merge((1, 1, 0), (1, 1, 4), (1, 0, 4))
    trials = proof(fleet, [((20.0, 1000.0), (10.0, 1000.0))] * 8)
    cut = replace(fleet, messages=tuple(c for c in fleet.messages if c.message == SMALL))
    _, (full, partial, unmeasured) = gains(cut, trials)
    assert (full.note, full.default_us) == ("", 20)
    assert (partial.note, partial.default_us) == ("without 1 of its 2 messages, which cannot be measured here", 20)
    assert (unmeasured.note, unmeasured.speedup) == ("not validated: none of its messages can be measured here", None)


def test_without_a_whole_block_no_part_has_a_proof():
    fleet = merge((1, 1, 0), (2, 0, 1))
    for trials in ([], proof(fleet, [((20.0, 1000.0), (10.0, 1000.0))])):
        _, found = gains(fleet, trials)
        assert {part.note for part in found} == {"not validated: no A/B test"}
        assert found[1].to_document() == {
            "name": "part1",
            "weight": 2,
            "default_us": None,
            "policy_us": None,
            "speedup": None,
            "interval": None,
            "note": "not validated: no A/B test",
        }


def test_an_interval_without_ends_is_no_number_in_json():
    fleet = merge((1, 1, 0), (1, 0, 1))
    _, (first, _) = gains(fleet, proof(fleet, [((20.0, 1000.0), (10.0, 1000.0))] * 2))
    assert first.to_document()["interval"] == [0.0, None]


def test_a_workload_that_was_not_merged_has_no_parts():
    fleet = replace(merge((1, 1, 0), (1, 0, 1)), parts=())
    assert gains(fleet, proof(fleet, [((20.0, 1000.0), (10.0, 1000.0))] * 8))[1] == ()
