"""Numerics of a policy: the order of floating-point additions under it, compared with the NCCL default."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from ncclt.core.algo_proto_text import BASE_NEEDED_SINCE, PER_COLLECTIVE_SINCE
from ncclt.core.algorithms import LEGAL, Algorithm
from ncclt.core.message import Collective
from ncclt.core.nccl_version import NcclVersion
from ncclt.core.policy import Policy, Rule

_CARRYING = frozenset(
    (
        *("IB_QPS_PER_CONNECTION", "IB_SPLIT_DATA_ON_QPS", "NSOCKS_PERTHREAD", "SOCKET_NTHREADS"),
        *("MAX_P2P_NCHANNELS", "MIN_P2P_NCHANNELS", "NCHANNELS_PER_NET_PEER"),
        *("P2P_NET_CHUNKSIZE", "P2P_NVL_CHUNKSIZE", "P2P_PCI_CHUNKSIZE"),
    )
)
"""Parameters of transports and of send/recv alone, which never touch the split of a reduction."""


class SameBits(StrEnum):
    """Agreement of results with the bits that the NCCL default gives."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Numerics:
    """Answer on the bits of a policy.

    Attributes:
        same_bits: yes only where no order of additions can change.
        why: one sentence.
    """

    same_bits: SameBits
    why: str

    @property
    def sentence(self) -> str:
        """Return the answer as one sentence."""
        return f"same bits as the NCCL default: {self.same_bits}: {self.why}"


def compare_bits(policy: Policy, *, version: NcclVersion, by_variables: bool) -> Numerics:
    """Compare the order of additions under a policy with that of the NCCL default.

    Floating-point addition is not associative, so another order gives other bits; all orders are equally accurate.
    Sources, NCCL 2.30.7: src/device/all_reduce.h, reduce_scatter.h, reduce.h, and ncclCollCbdPart in
    src/include/device.h. Not tried on a GPU.

    - all_gather, broadcast, all_to_all and send_recv add nothing: yes for what acts on them alone. So are parameters of
      transports and of send/recv.
    - Ring, Tree, NVLS and CollNet add in different orders (NVLS and CollNet in the switch). An algorithm that is forced
      on all_reduce or reduce_scatter is no, even if NCCL might have chosen the same; reduce has a ring alone.
    - all_reduce on a ring: the sum of a chunk begins at the rank that its number gives, and the chunks follow from
      the channels and the protocol's chunk size. Either of them forced is no.
    - reduce_scatter and reduce with channels or a protocol alone: the channel decides which ring an element takes, and
      whether rings differ depends on the topology: unknown.
    - A variable NCCL_ALGO removes PyTorch's own guard: `torch.use_deterministic_algorithms` excludes NVLS, which adds
      in no fixed order (NVIDIA/nccl#1497), only where NCCL_ALGO is unset (pytorch/pytorch#156381). Where the variable
      leaves NVLS to a reduction the answer is unknown. A table leaves NCCL_ALGO unset.
    - A job may reduce what its profile lacks, such as a loss: a rule for any reduction counts, and what acts on the
      whole process is unknown. That is BUFFSIZE, NTHREADS, MIN_CTAS, and by variables also the channels; NCCL_ALGO and
      NCCL_PROTO before 2.24, whose list is for all collectives, and from 2.31, where it confines those that it does
      not name.

    Integers and sums of two ranks never differ; a policy knows neither, so the answer is on the safe side.

    Args:
        by_variables: delivered as plain variables, not as a table.
    """
    forced = [rule for rule in policy.rules if rule.collective.is_reduction]
    if changed := next(filter(None, map(_changed_order, forced)), ""):
        return Numerics(same_bits=SameBits.NO, why=changed)
    if split := next((f"{r.collective} has its protocol or channels forced" for r in forced if _splits(r)), ""):
        return Numerics(same_bits=SameBits.UNKNOWN, why=f"{split}, and rings of channels may differ")
    if by_variables and (guard := describe_lost_guard(policy.rules, version)):
        return Numerics(same_bits=SameBits.UNKNOWN, why=guard)
    if names := _list_process_wide(policy, version, by_variables=by_variables):
        why = f"{', '.join(names)} may change the order of additions in every reduction of the process"
        return Numerics(same_bits=SameBits.UNKNOWN, why=why)
    return Numerics(same_bits=SameBits.YES, why="nothing that adds numbers is changed")


def describe_lost_guard(rules: Iterable[Rule], version: NcclVersion) -> str:
    """Name the reductions to which a variable NCCL_ALGO leaves NVLS, against PyTorch's guard; empty = none.

    Before 2.24 the value holds for all collectives, and from 2.31 it begins with a list without NVLS.
    """
    named = {rule.collective for rule in rules if rule.algorithm}
    if not named or not PER_COLLECTIVE_SINCE <= version < BASE_NEEDED_SINCE:
        return ""
    unnamed = [c for c in Collective if Algorithm.NVLS in LEGAL[c] and c.is_reduction and c not in named]
    excludes = "torch.use_deterministic_algorithms excludes NVLS only where NCCL_ALGO is unset"
    return f"NCCL_ALGO leaves NVLS to {', '.join(unnamed)}, and {excludes}" if unnamed else ""


def may_change_order(name: str) -> bool:
    """Return True if a process-wide parameter may change the order of additions; its name has no `NCCL_`."""
    return name not in _CARRYING


def _list_process_wide(policy: Policy, version: NcclVersion, *, by_variables: bool) -> list[str]:
    """List what acts on reductions of the whole process, whatever collective it was chosen for."""
    names = [f"NCCL_{name}" for name, _ in policy.parameters if may_change_order(name)]
    if by_variables:
        if not PER_COLLECTIVE_SINCE <= version < BASE_NEEDED_SINCE:
            names += ["NCCL_ALGO"] if any(rule.algorithm for rule in policy.rules) else []
            names += ["NCCL_PROTO"] if any(rule.protocol for rule in policy.rules) else []
        names += ["the maximum of channels"] if any(rule.channels is not None for rule in policy.rules) else []
    return names


def _splits(rule: Rule) -> bool:
    return rule.protocol is not None or rule.channels is not None


def _changed_order(rule: Rule) -> str:
    """Return the reason why a rule for a reducing collective changes the order of additions; empty if uncertain."""
    if rule.algorithm is not None and rule.collective is not Collective.REDUCE:
        return f"{rule.collective} is forced to {rule.algorithm}, which adds in another order unless NCCL chose it too"
    if rule.collective is Collective.ALL_REDUCE and _splits(rule):
        return "all_reduce has its protocol or channels forced, which moves the chunks and where their sums begin"
    return ""
