"""Numerics of a policy: the order of floating-point additions under it, compared with the NCCL default."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from ncclt.core.algo_proto_text import BASE_NEEDED_SINCE
from ncclt.core.message import Collective
from ncclt.core.nccl_version import NcclVersion
from ncclt.core.policy import Policy, Rule

_REDUCING = (Collective.ALL_REDUCE, Collective.REDUCE_SCATTER, Collective.REDUCE)

_CARRYING = frozenset(
    (
        "IB_QPS_PER_CONNECTION",
        "IB_SPLIT_DATA_ON_QPS",
        "NSOCKS_PERTHREAD",
        "P2P_NET_CHUNKSIZE",
        "P2P_NVL_CHUNKSIZE",
        "P2P_PCI_CHUNKSIZE",
        "SOCKET_NTHREADS",
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


def compare_bits(
    policy: Policy, collectives: Iterable[Collective], *, version: NcclVersion, by_variables: bool
) -> Numerics:
    """Compare the order of additions under a policy with that of the NCCL default.

    Floating-point addition is not associative, so another order gives other bits; all orders are equally accurate.
    Sources, NCCL 2.30.7: src/device/all_reduce.h, reduce_scatter.h, reduce.h, and ncclCollCbdPart in
    src/include/device.h. Not tried on a GPU.

    - all_gather, broadcast, all_to_all and send_recv add nothing: yes under every setting. So do parameters of
      transports and of send/recv.
    - Ring, Tree, NVLS and CollNet add in different orders (NVLS and CollNet in the switch). An algorithm that is forced
      on a reducing collective is no, even if NCCL might have chosen the same.
    - all_reduce on a ring: the sum of a chunk begins at the rank that its number gives, and the chunks follow from
      the channels and the protocol's chunk size. Either of them forced is no.
    - reduce_scatter and reduce with channels or a protocol alone: the channel decides which ring an element takes, and
      whether rings differ depends on the topology: unknown. So do BUFFSIZE, NTHREADS and numbers of channels of the
      process: their effect depends on size and topology.
    - From NCCL 2.31, variables that force one collective confine the choice for the others: unknown for those.

    Integers and sums of two ranks never differ; a policy knows neither, so the answer is on the safe side.

    Args:
        policy: as it is delivered.
        collectives: that the job uses.
        version: of NCCL.
        by_variables: delivered as plain variables, not as a table.
    """
    reducing = [collective for collective in _REDUCING if collective in set(collectives)]
    forced = [rule for rule in policy.rules if rule.collective in reducing]
    if changed := next(filter(None, map(_changed_order, forced)), ""):
        return Numerics(same_bits=SameBits.NO, why=changed)
    if split := next((f"{r.collective} has its protocol or channels forced" for r in forced if _splits(r)), ""):
        return Numerics(same_bits=SameBits.UNKNOWN, why=f"{split}, and rings of channels may differ")
    if reducing and (names := [f"NCCL_{name}" for name, _ in policy.parameters if name not in _CARRYING]):
        return Numerics(same_bits=SameBits.UNKNOWN, why=f"{', '.join(names)} may change the split of {reducing[0]}")
    confines = by_variables and version >= BASE_NEEDED_SINCE and any(r.algorithm or r.protocol for r in policy.rules)
    if reducing and confines:
        why = f"forcing other collectives by variables confines the choice for {reducing[0]}"
        return Numerics(same_bits=SameBits.UNKNOWN, why=why)
    return Numerics(same_bits=SameBits.YES, why="nothing that adds numbers is changed")


def _splits(rule: Rule) -> bool:
    return rule.protocol is not None or rule.channels is not None


def _changed_order(rule: Rule) -> str:
    """Return the reason why a rule for a reducing collective changes the order of additions; empty if uncertain."""
    if rule.algorithm is not None:
        return f"{rule.collective} is forced to {rule.algorithm} and may add in another order"
    if rule.collective is Collective.ALL_REDUCE and _splits(rule):
        return "all_reduce has its protocol or channels forced, which moves the chunks and where their sums begin"
    return ""
