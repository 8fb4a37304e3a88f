"""From measurements to one number: communication time per training step."""

from __future__ import annotations

import math

from ncclt.core.message import Message
from ncclt.core.trial import TrialResult
from ncclt.core.workload import Workload


def score_us(result: TrialResult, workload: Workload) -> float:
    """Return the communication time per step of the messages that a trial measured, µs.

    With outcome `ok` and all messages asked for, that is the time per step of the workload; a trial of a policy's part
    scores its part. Messages that the workload lacks do not count.
    """
    calls = {c.message: c.calls_per_step for c in workload.messages}
    return sum(calls[m.message] * m.time_us for m in result.measurements if m.message in calls)


LOSS_SLOPE = 0.1
"""Weight of a message that a setting slows down, compared with one that it speeds up."""


def log_ratios(result: TrialResult, default: TrialResult) -> dict[Message, float]:
    """Return ln(time / time of the default) per message: below 0 = faster than the default."""
    defaults = {m.message: m.time_us for m in default.measurements}
    return {m.message: math.log(m.time_us / defaults[m.message]) for m in result.measurements}


def worth(result: TrialResult, default: TrialResult, workload: Workload) -> float:
    """Return the gain of a per-size policy from a setting: below 0 = faster, -0.05 = about 5 % of the time per step.

    The log ratios of all messages, weighted by their share of the default's time per step. Losses count a tenth, since
    the policy uses the default there: with full weight, a setting that is excellent for half of the messages and poor
    for the others would look worthless.
    """
    defaults = {m.message: m.time_us for m in default.measurements}
    costs = {c.message: c.calls_per_step * defaults[c.message] for c in workload.messages}
    ratios = log_ratios(result, default)
    weighted = sum(costs[m] * ratio * (LOSS_SLOPE if ratio > 0 else 1.0) for m, ratio in ratios.items() if m in costs)
    return weighted / sum(costs.values())
