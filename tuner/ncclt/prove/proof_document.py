"""The evidence of a published verdict as a document: every block, and the verdict judged again from the trials."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ncclt.core.recommendation import Coverage, PolicyVerdict, Recommendation
from ncclt.core.study import Arm, Trial
from ncclt.core.workload import Workload
from ncclt.prove.coverage import require_coverage
from ncclt.prove.proof import RunningVerdict, judge_arm, running_verdicts

EVIDENCE_SCHEMA = 1
"""Version of the document of `evidence_document`."""


def evidence_document(found: Recommendation, trials: Sequence[Trial], workload: Workload) -> dict[str, Any]:
    """Return the blocks of every arm, and its verdict recomputed from the trials.

    Args:
        found: as published.
        trials: of its study, all of them.
        workload: of its study, placed.
    """
    arms = {Arm.TABLE: found.table, Arm.VARIABLES: found.variables}
    return {
        "schema": EVIDENCE_SCHEMA,
        "recommendation": found.id,
        "study": found.study,
        "stale": found.stale,
        "arms": [
            _arm(arm, policy_verdict, trials, workload, found.coverage)
            for arm, policy_verdict in arms.items()
            if policy_verdict is not None
        ],
    }


def _arm(
    arm: Arm, policy_verdict: PolicyVerdict, trials: Sequence[Trial], workload: Workload, coverage: Coverage | None
) -> dict[str, Any]:
    verdict, policy = policy_verdict.verdict, policy_verdict.policy
    blocks = running_verdicts(arm, policy, trials, workload, min_effect=verdict.min_effect)
    judged = judge_arm(arm, policy, trials, workload, min_effect=verdict.min_effect)
    again = require_coverage(judged, coverage)
    measured = any(trial.arm is arm for trial in trials)
    return {
        "arm": arm.value,
        "verdict": verdict.to_document(),
        # If the search found nothing to prove, there are no launches, and nothing to judge.
        "recomputed": again.to_document() if measured else None,
        "same": again == verdict if measured else None,
        "blocks": [_block(row) for row in blocks],
    }


def _block(row: RunningVerdict) -> dict[str, Any]:
    verdict = row.verdict.to_document()
    return {
        "block": row.block,
        "trials": [[default.order, launch.order] for default, launch in row.pairs],
        "default_us": [default.time_us for default, _ in row.pairs],
        "policy_us": [launch.time_us for _, launch in row.pairs],
        "log_ratios": list(row.log_ratios),
        "speedup": verdict["speedup"],
        "interval": verdict["interval"],
        "decision": verdict["decision"],
    }
