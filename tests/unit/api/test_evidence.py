"""Blocks of the verification and times per message."""

from dataclasses import replace

import pytest

from ncclt.core.recommendation import Decision, PolicyVerdict
from ncclt.core.study import Arm
from ncclt.core.trial import Outcome
from ncclt.prove.evidence import collect_evidence
from ncclt.prove.proof import build_pairs
from ncclt.prove.verdict import block_speedups
from ncclt_api.pages.study import build_blocks
from ncclt_api.pages.study_charts import best_setting_rows, policy_rows


def test_blocks_show_the_order_and_the_ratio_that_the_verdict_uses(samples):
    study = samples.study()
    evidence = collect_evidence(samples.verify_trials(study, first=24, blocks=3))
    blocks = build_blocks(evidence, study.workload)
    pairs = build_pairs(Arm.TABLE, samples.POLICY, evidence.whole_blocks(Arm.TABLE), study.workload)
    expected = block_speedups(pairs.default_us, pairs.policy_us)
    assert [block.order for block in blocks] == [(Arm.DEFAULT, Arm.TABLE, Arm.TABLE, Arm.DEFAULT)] * 3
    assert tuple(block.ratios[Arm.TABLE] for block in blocks) == expected


def test_a_failed_launch_leaves_its_block_without_a_ratio(samples):
    study = samples.study()
    trials = samples.verify_trials(study, first=0, blocks=2)
    broken = trials[1]
    trials[1] = samples.trial(
        1, broken.setting, study, phase=broken.phase, arm=broken.arm, block=0, outcome=Outcome.CRASHED
    )
    first, second = build_blocks(collect_evidence(trials), study.workload)
    assert Arm.TABLE not in first.ratios
    assert first.launches[Arm.TABLE][0].time_us is None
    assert Arm.TABLE in second.ratios


def test_a_launch_without_a_score_counts_as_failed(samples):
    """A message that the benchmark left out would make the sum of the others look fast."""
    study = samples.study()
    trials = samples.verify_trials(study, first=0, blocks=1)
    trials[1] = replace(trials[1], score_us=None)
    (block,) = build_blocks(collect_evidence(trials), study.workload)
    assert block.launches[trials[1].arm][0].time_us is None


def test_an_unfinished_block_has_no_ratio_and_an_unmeasured_arm_none(samples):
    study = samples.study()
    trials = [t for t in samples.verify_trials(study, first=0, blocks=1) if t.block == 0]
    (block,) = build_blocks(collect_evidence(trials), study.workload)
    assert Arm.TABLE not in block.ratios
    assert Arm.VARIABLES not in block.ratios
    assert build_blocks(collect_evidence(samples.search_trials(study)), study.workload) == ()


def proven(samples):
    """The policy of the samples, proven."""
    return PolicyVerdict(policy=samples.POLICY, verdict=samples.verdict(Decision.TUNED))


def test_message_rows_come_from_the_verification(samples):
    study = samples.study()
    rows = policy_rows(study, collect_evidence(samples.verify_trials(study, first=0)), proven(samples))
    assert [row.step_us for row in rows] == sorted((row.step_us for row in rows), reverse=True)
    verdict = proven(samples).verdict
    assert sum(row.step_us for row in rows) == pytest.approx(verdict.default_us)
    policy_us = sum(row.calls.calls_per_step * row.policy_us for row in rows)
    assert policy_us == pytest.approx(verdict.default_us / verdict.speedup)
    large = next(row for row in rows if row.message.size_bytes == 28_351_488)
    assert large.setting == "ring/simple c=16"
    assert large.speedup > 1


def test_before_a_verdict_the_best_setting_stands_against_the_default(samples):
    study = samples.study()
    rows = best_setting_rows(study, samples.search_trials(study), samples.RING)
    assert all(row.default_us and row.policy_us for row in rows)
    nothing = best_setting_rows(study, [], samples.RING)
    assert all(row.speedup is None and row.policy_us is None for row in nothing)
