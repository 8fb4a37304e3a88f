"""Candidate policies without a measurement: what the model's prior holds to be most worth a try, each one different."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from ncclt.core.cluster import Cluster
from ncclt.core.message import Message
from ncclt.core.nccl_version import NcclVersion
from ncclt.core.policy import Policy, uniform_policy
from ncclt.core.setting import DEFAULT, Setting
from ncclt.core.workload import Workload
from ncclt.nccl.compile import compile_policy
from ncclt.nccl.cost_model.model import nccl_choice
from ncclt.nccl.cost_model.topology import build_topology
from ncclt.nccl.p2p_chunk import default_process_wide, effective
from ncclt.search.assemble import Times, build_rules
from ncclt.search.prior import expected_log_ratios, match_expected_default
from ncclt.search.sampler import GaussianProcessSampler
from ncclt.search.space import cluster_space, process_wide_ladders

MOST_EXPECTED_RATIO = 1.1
"""Expected time over the default's up to which a setting gets a rule: NCCL's model is wrong by this much and more."""

_PROPOSALS = 32
"""Max proposals looked at: many settings become one policy, or the default."""


def propose_policies(
    workload: Workload,
    cluster: Cluster,
    *,
    most: int,
    by_table: bool,
    expressible: Callable[[Setting], bool],
) -> tuple[Policy, ...]:
    """Return policies to try on jobs: the most promising first, different from each other and from the default.

    The sampler proposes them as if launched at once, so each looks elsewhere than those before it. By NCCL's own cost
    model nothing is faster than what it chooses; they are where that model is least sure to be right.

    Args:
        workload: placed on the cluster.
        cluster: sized.
        most: how many at most.
        by_table: the plugin can deliver rules by size; otherwise only what variables express is proposed.
        expressible: returns whether a pair can be forced.
    """
    version, messages = cluster.version, [calls.message for calls in workload.messages]
    default_parameters = default_process_wide(cluster, messages)
    space = cluster_space(
        workload.collectives,
        cluster,
        parameters=process_wide_ladders(default_parameters, cluster, default=default_parameters, beside_compute=False),
        expressible=expressible,
        effect=lambda values: frozenset(effective(values, cluster, messages).items()),
    )
    sampler = GaussianProcessSampler(space, workload, cluster)
    times_us = _expected_default_us(messages, cluster)
    default = Times(by_setting={DEFAULT: times_us}, launches={DEFAULT: dict.fromkeys(messages, 1)})
    weights = np.array([times_us[calls.message] * calls.calls_per_step for calls in workload.messages])

    chosen: list[Setting] = []
    proposed: dict[object, Policy] = {}
    for _ in range(_PROPOSALS):
        proposal = sampler.propose(default, running=chosen)
        if proposal is None or len(proposed) == most or proposal.setting.is_default:
            break
        setting = proposal.setting
        chosen.append(setting)
        ratios = np.exp(expected_log_ratios([setting], messages, cluster)[0])
        own = match_expected_default([setting], messages, cluster)[0]
        if by_table:
            policy = _build_table(setting, messages, (ratios <= MOST_EXPECTED_RATIO) & ~own, version)
            key: object = policy
        elif (form := None if np.all(own) else _find_form(setting, workload, weights, ratios, version)) is not None:
            policy, key = form
        else:
            continue
        if not policy.is_default:
            proposed.setdefault(key, policy)
    return tuple(proposed.values())


def _build_table(
    setting: Setting, messages: Sequence[Message], is_promising: NDArray[np.bool_], version: NcclVersion
) -> Policy:
    """Return the table that gives the promising messages a setting."""
    applied = {}
    for message, is_used in zip(messages, is_promising, strict=True):
        reaching = setting.applied_to(message.collective, version=version)
        # A row of the table names algorithm and protocol.
        applied[message] = reaching if is_used and reaching.algorithm and reaching.protocol else DEFAULT
    return Policy(rules=build_rules(applied), parameters=setting.parameters)


def _find_form(
    setting: Setting,
    workload: Workload,
    weights: NDArray[np.float64],
    ratios: NDArray[np.float64],
    version: NcclVersion,
) -> tuple[Policy, object] | None:
    """Return the policy of a setting that variables express, and these; None = there is none."""

    def is_fast(among: NDArray[np.bool_]) -> bool:
        """Check that messages are not expected to take much longer together."""
        return float(weights[among] @ ratios[among]) <= MOST_EXPECTED_RATIO * float(weights[among].sum())

    collectives, sent = workload.collectives, [calls.message.collective for calls in workload.messages]
    fast = frozenset(c for c in collectives if is_fast(np.array([own is c for own in sent])))
    # Variables of old versions, and caps of channels, reach all collectives or none.
    for reached in (fast, collectives if is_fast(np.ones(len(sent), dtype=np.bool_)) else frozenset()):
        policy = uniform_policy(setting, reached, version=version)
        compiled = compile_policy(policy, version=version, collectives=collectives)
        if compiled.complete:
            return policy, compiled.variables
    return None


def _expected_default_us(messages: Sequence[Message], cluster: Cluster) -> dict[Message, float]:
    """Return the time of one call of each message by NCCL's cost model, µs; they only weight the messages."""
    times_us = {}
    for message in messages:
        graph = build_topology(cluster, message.group_size, message.spans_nodes)
        choice = nccl_choice(message.collective, message.size_bytes, graph)
        times_us[message] = message.size_bytes / (cluster.link_gbps * 1e3) + 10.0 if choice is None else choice.time_us
    return times_us
