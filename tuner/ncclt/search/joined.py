"""From the policies of several workloads to the one table that a launch for all of them applies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from ncclt.core.message import Message
from ncclt.core.nccl_version import NcclVersion
from ncclt.core.policy import Policy
from ncclt.core.setting import Setting
from ncclt.core.workload import Workload
from ncclt.search.assemble import Times, rules_of


def joined(policies: Sequence[Policy], workloads: Sequence[Workload], times: Times, *, version: NcclVersion) -> Policy:
    """Return one table with the rules of several policies.

    Where two workloads send the same message under different settings, because each keeps only the rules it needs,
    the faster one counts for both.

    Args:
        policies: with the same process-wide parameters.
        workloads: theirs, placed.
        times: as the model believes them.
        version: of NCCL.
    """
    parameters = policies[0].parameters
    assert all(policy.parameters == parameters for policy in policies), "one process has one value of each"
    choices: dict[Message, Setting] = {}
    for policy, workload in zip(policies, workloads, strict=True):
        for calls in workload.messages:
            message = calls.message
            wanted = {choices.get(message, policy.setting_for(message)), policy.setting_for(message)}
            ranked = [(_time_us(times, message, setting, version), setting.digest(), setting) for setting in wanted]
            choices[message] = min(ranked)[2]
    return Policy(rules=rules_of(choices), parameters=parameters)


def _time_us(times: Times, message: Message, setting: Setting, version: NcclVersion) -> float:
    known = [
        mine[message]
        for other, mine in times.by_setting.items()
        if message in mine and other.applied_to(message.collective, version=version) == setting
    ]
    return min(known, default=math.inf)


def own_part(table: Policy, workload: Workload) -> Policy:
    """Return the rules of a table that some message of a workload meets: at all of them it says the same."""
    met = {calls.message for calls in workload.messages}
    rules = tuple(rule for rule in table.rules if any(rule.matches(message) for message in met))
    own = replace(table, rules=rules)
    assert all(own.setting_for(message) == table.setting_for(message) for message in met)
    return own
