"""The best policy that plain environment variables can express: one choice per collective for all sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ncclt.core.algorithms import Protocol
from ncclt.core.message import Collective
from ncclt.core.nccl_version import NcclVersion
from ncclt.core.policy import Policy, uniform_policy
from ncclt.core.setting import Setting
from ncclt.core.workload import Workload
from ncclt.search.assemble import Times, expected_us

MIN_GAIN = 0.01
"""Expected gain over the default, as a share, from which a collapsed policy is proven."""


def collapse(
    times: Times, workload: Workload, *, version: NcclVersion, expressible: Callable[[Policy], bool]
) -> Policy | None:
    """Return the uniform policy with the least expected time per step, or None where the default is as good.

    One channel count and one set of process-wide parameters apply to all collectives; algorithm and protocol are
    chosen per collective among the settings that were measured with them. LL128 cannot be forced by variables
    without bypassing NCCL's safety check, so it is not a candidate.

    Args:
        times: must contain the default.
        workload: placed.
        version: of NCCL.
        expressible: returns whether the variables of this NCCL version can express a whole policy.
    """
    default_us = expected_us(Policy(), times, workload, version=version)
    ranked = sorted(
        (
            (expected_us(policy, times, workload, version=version, by_variables=True), policy)
            for policy in _candidates(times, workload, version)
        ),
        key=lambda pair: (pair[0], pair[1].digest()),
    )
    for time_us, policy in ranked:
        if time_us > default_us * (1 - MIN_GAIN):
            return None
        if expressible(policy):
            return policy
    return None


def _candidates(times: Times, workload: Workload, version: NcclVersion) -> Iterator[Policy]:
    """Yield every single measured setting, and per channels and parameters the best mixture over collectives."""
    usable = [s for s in times.by_setting if s.protocol is not Protocol.LL128 and not s.is_default]
    for setting in usable:
        yield uniform_policy(setting, workload.collectives, version=version)
    tunable = sorted(c for c in workload.collectives if c.is_tunable)
    if len(tunable) < 2:
        return
    for channels, parameters in sorted({(s.channels or 0, s.parameters) for s in usable}):
        group = [s for s in usable if (s.channels or 0, s.parameters) == (channels, parameters)]
        rules = [
            rule
            for collective in tunable
            for rule in uniform_policy(
                _best_for(collective, group, times, workload), (collective,), version=version
            ).rules
        ]
        yield Policy(rules=tuple(rules), parameters=parameters)


def _best_for(collective: Collective, group: list[Setting], times: Times, workload: Workload) -> Setting:
    def cost_us(setting: Setting) -> float:
        return sum(
            calls.calls_per_step * times.by_setting[setting].get(calls.message, float("inf"))
            for calls in workload.messages
            if calls.message.collective is collective
        )

    return min(group, key=lambda s: (cost_us(s), s.digest()))
