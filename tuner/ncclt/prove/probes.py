"""Sizes that a rule covers and the workload lacks: measured in the proof's first pair; where they lose, the rule ends.

A rule reaches beyond the measured sizes, to their neighbours and up to sqrt(2) (`search.assemble.build_rules`), since a
job's sizes move a little with its version. The workload's own messages keep their setting whatever a probe
says, so what was proven of them stays true of the narrowed policy. Only those that looked slower themselves lose it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from ncclt.core.cluster import Cluster
from ncclt.core.message import DTYPE_SIZES, Collective, Message
from ncclt.core.policy import Policy, Rule
from ncclt.core.setting import Setting
from ncclt.core.workload import Workload
from ncclt.nccl.p2p_chunk import P2P_CHANNELS

_NEAR = 2
"""Between two measured sizes of a rule within this factor there is no probe."""

_GATE_BYTES = (1 << 10, 64 << 10, 1 << 20)
"""Bytes between two ranks: one LL message, one chunk, and several chunks on every channel."""


def find_probes(
    policy: Policy, workload: Workload, *, covers: Callable[[Message, Setting], bool]
) -> tuple[Message, ...]:
    """Find the sizes to probe: both ends of every rule, the way there, and large gaps between its measured sizes.

    Args:
        policy: rules with open ends, which variables need, are not probed there.
        workload: placed.
        covers: whether a message can be measured under a setting, and under the default.
    """
    own = {calls.message for calls in workload.messages}
    probes = (probe for rule in policy.rules for probe in _find_rule_probes(rule, sorted(filter(rule.matches, own))))
    return tuple(sorted({probe for probe in probes if probe not in own and covers(probe, policy.setting_for(probe))}))


def find_hang_probes(policy: Policy, workload: Workload, cluster: Cluster) -> tuple[Message, ...]:
    """Find the calls that a policy must end before it is measured on: the gate of numbers of P2P channels.

    send_recv and all_to_all in the whole job and in every group of the workload, because the published hangs depend on
    the number of ranks (NVIDIA/nccl#1835, #1915), and because numbers of channels act on every group of a job.

    Args:
        workload: placed.
        cluster: sized.
    """
    if {name for name, _ in policy.parameters}.isdisjoint(P2P_CHANNELS):
        return ()
    groups = {(m.group_size, m.spans_nodes) for m in (calls.message for calls in workload.messages)}
    groups |= {(cluster.world_size, cluster.nodes > 1)}
    own = {calls.message for calls in workload.messages}
    probes = {
        Message(
            collective=collective,
            dtype="float32",
            size_bytes=size * (ranks if collective is Collective.ALL_TO_ALL else 1),
            group_size=ranks,
            spans_nodes=spans,
        )
        for collective in (Collective.ALL_TO_ALL, Collective.SEND_RECV)
        for ranks, spans in groups
        for size in _GATE_BYTES
    }
    return tuple(sorted(probes - own))


def compare_probes(
    policy: Policy, workload: Workload, default_us: Mapping[Message, float], policy_us: Mapping[Message, float]
) -> dict[Message, bool]:
    """Compare every probe under a rule with the default: true = it was slower.

    Args:
        workload: placed.
        default_us, policy_us: times of one call, µs; what is in both and not in the workload was probed.
    """
    own = {calls.message for calls in workload.messages}
    probes = sorted((default_us.keys() & policy_us.keys()) - own)
    return {m: policy_us[m] > default_us[m] for m in probes if any(rule.matches(m) for rule in policy.rules)}


def narrow_rules(policy: Policy, workload: Workload, slower: Mapping[Message, bool]) -> Policy:
    """Narrow the rules of a policy to sizes that were not slower.

    Args:
        workload: placed.
        slower: probes, of which the workload's own sizes need none; and messages of the workload that are left out,
            with all others of their size: NCCL's tuner sees bytes only.
    """
    rules: list[Rule] = []
    messages = {calls.message for calls in workload.messages}
    for rule in policy.rules:
        met = {message: is_slower for message, is_slower in slower.items() if rule.matches(message)}
        out = {m.size_bytes for m, is_slower in met.items() if is_slower and m in messages}
        own = {m.size_bytes for m in messages if rule.matches(m)} - out
        lost = {m.size_bytes for m, is_slower in met.items() if is_slower} - own
        won = {m.size_bytes for m, is_slower in met.items() if not is_slower} - lost
        rules += _split_rule(rule, own, won, lost) if lost else [rule]
    return Policy(rules=tuple(rules), parameters=policy.parameters)


def _find_rule_probes(rule: Rule, messages: list[Message]) -> Iterator[Message]:
    if not messages:
        return
    sizes = sorted({message.size_bytes for message in messages})
    wanted = [math.isqrt(low * high) for low, high in itertools.pairwise(sizes) if high > _NEAR * low]
    for end, last in ((rule.min_bytes, sizes[0]), (rule.max_bytes, sizes[-1])):
        if end:
            wanted += [end, math.isqrt(end * last)]
    for size in wanted:
        like = min(messages, key=lambda message: abs(math.log(message.size_bytes / size)))
        unit = DTYPE_SIZES[like.dtype] * max(1, like.group_size)
        rounded = size // unit * unit
        if rounded < rule.min_bytes:
            rounded += unit
        probe = replace(like, size_bytes=max(unit, rounded))
        if rule.matches(probe):
            yield probe


def _split_rule(rule: Rule, own: set[int], won: set[int], lost: set[int]) -> Iterator[Rule]:
    """Yield the rest of a rule: runs of sizes that did not lose and hold one of the workload."""
    points = sorted(own | won | lost)
    for is_lost, sizes in itertools.groupby(points, key=lost.__contains__):
        run = list(sizes)
        if not is_lost and not own.isdisjoint(run):
            low = rule.min_bytes if run[0] == points[0] else run[0]
            high = rule.max_bytes if run[-1] == points[-1] else run[-1]
            yield replace(rule, min_bytes=low, max_bytes=high)
