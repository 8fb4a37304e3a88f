"""Which message a proposal is made for: all take turns, by their share of the time."""

from __future__ import annotations

from ncclt.core.message import Message
from ncclt.core.trial import TrialResult
from ncclt.core.workload import Workload

COVERED_SHARE = 0.95
"""The messages that take turns are the fewest that make up this share of the default's time per step."""


def focus_of(number: int, default: TrialResult, workload: Workload) -> Message:
    """Return the message for which trial `number` is proposed.

    Weighted round robin: at every turn the message goes whose turns lag most behind its share, so that the order is a
    function of the shares alone.

    Args:
        number: of the trial, from 0.
        default: result of the default, with a time for every message.
        workload: placed.
    """
    times = {m.message: m.time_us for m in default.measurements}
    costs = {c.message: c.calls_per_step * times[c.message] for c in workload.messages}
    total = sum(costs.values())
    chosen: dict[Message, float] = {}
    for message, cost in sorted(costs.items(), key=lambda item: (-item[1], item[0])):
        if sum(chosen.values()) >= COVERED_SHARE * total:
            break
        chosen[message] = cost
    turns = dict.fromkeys(chosen, 0)
    covered = sum(chosen.values())
    message = next(iter(chosen))
    for turn in range(number + 1):
        message = max(chosen, key=lambda m: chosen[m] / covered * (turn + 1) - turns[m])
        turns[message] += 1
    return message
