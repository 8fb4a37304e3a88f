"""NCCL's calls as messages: the group's size, the full buffer, the dtype."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ncclt.core.message import DTYPE_SIZES, MOST_BYTES, Collective, Message
from ncclt.profile.readers.nccl_log.ranks import OPERATIONS, PER_RANK, UNKNOWN_DTYPE
from ncclt.profile.readers.nsys.calls import CallKind, Membership, NsysExport, Process
from ncclt.profile.readers.nsys.kernels import agreed_dtypes
from ncclt.profile.roles import RankMessages

FUNCTIONS = {f"nccl{word}": collective for word, collective in OPERATIONS.items()} | {"ncclBcast": Collective.BROADCAST}
"""Function of NCCL -> collective; gather, scatter and what manages communicators make no message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """The messages of a recording.

    Attributes:
        views: what each process sent.
        left_out: reason -> calls that made no message, of the process with the most.
        assumed: what was taken for granted, one sentence each.
    """

    views: tuple[RankMessages, ...]
    left_out: Mapping[str, int]
    assumed: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """A communicator as one process sees it: its ranks, 0 where not known, and how many of them the process drives."""

    ranks: int
    local: int
    is_assumed: bool


def messages_of(recordings: Sequence[NsysExport]) -> Sizing:
    """Return the messages of all processes."""
    members = {key: member for recording in recordings for key, member in recording.members.items()}
    dtypes = agreed_dtypes(kernel for recording in recordings for kernel in recording.kernels)
    by_process: dict[Process, list[tuple[CallKind, int]]] = {}
    for recording in recordings:
        for (process, kind), count in recording.sized.items():
            by_process.setdefault(process, []).append((kind, count))
    views, left_out, assumed = [], Counter[str](), dict[str, None]()
    for process, kinds in sorted(by_process.items()):
        sends = any(kind.function == "ncclSend" for kind, _count in kinds)
        calls: Counter[tuple[str, Message]] = Counter()
        mine: Counter[str] = Counter()
        for kind, count in kinds:
            if kind.function not in FUNCTIONS or (sends and kind.function == "ncclRecv"):
                continue
            group = _group(process, kind.communicator, members)
            made = _message(kind, group, dtypes)
            if isinstance(made, str):
                mine[made] += count
                continue
            # A process that drives several GPUs calls once for each of them.
            calls[f"{kind.communicator}", made] += max(1, round(count / group.local))
            assumed.update(dict.fromkeys(_assumptions(made, group)))
        left_out |= mine
        views.append(RankMessages(rank=_rank(process, members), calls=dict(calls)))
    return Sizing(views=tuple(views), left_out=left_out, assumed=tuple(assumed))


def _group(
    process: Process, communicator: int | None, members: Mapping[tuple[Process, int | None], Membership]
) -> _Group:
    mine = members.get((process, communicator))
    local = max(1, len(mine.mine)) if mine else 1
    if communicator is None:
        sizes = {member.ranks for (_process, other), member in members.items() if other is None}
        ranks = sizes.pop() if len(sizes) == 1 else 0
        return _Group(ranks=ranks, local=local, is_assumed=ranks > 0)
    # The hash is the same on all ranks: another process may have recorded the size that this one lacks.
    known = [member.ranks for (_process, other), member in members.items() if other == communicator]
    return _Group(ranks=known[0] if known else 0, local=local, is_assumed=False)


def _message(kind: CallKind, group: _Group, dtypes: Mapping[Collective, str]) -> Message | str:
    collective = FUNCTIONS[kind.function]
    if not 0 < kind.size_bytes <= MOST_BYTES:
        return f"{kind.function} of {'0' if not kind.size_bytes else 'impossibly many'} bytes"
    if collective in PER_RANK and not group.ranks:
        return f"{kind.function}, whose full size needs the ranks of its group, which the recording does not give"
    size_bytes = kind.size_bytes * (group.ranks if collective in PER_RANK else 1)
    if size_bytes > MOST_BYTES:
        return f"{kind.function} of impossibly many bytes"
    dtype = dtypes.get(collective, UNKNOWN_DTYPE)
    return Message(
        collective=collective,
        dtype=dtype if size_bytes % DTYPE_SIZES[dtype] == 0 else UNKNOWN_DTYPE,
        size_bytes=size_bytes,
        group_size=group.ranks,
    )


def _assumptions(message: Message, group: _Group) -> list[str]:
    how = f"is {message.dtype} by the names of its kernels"
    if message.dtype == UNKNOWN_DTYPE:
        how = f"is taken as {UNKNOWN_DTYPE}, bytes of no known type"
    assumed = [f"payloads have no dtype: {message.collective} {how}"]
    if not group.ranks:
        assumed.append("the creation of a communicator was not recorded: its group is taken as the whole job")
    elif group.is_assumed:
        assumed.append(
            f"NCCL before 2.25 does not name the communicator of a call: all that were created have {group.ranks} ranks"
        )
    if group.local > 1:
        assumed.append(f"a process drives {group.local} GPUs: its calls are divided by them")
    if message.collective is Collective.SEND_RECV:
        assumed.append("all_to_all of PyTorch shows as the sends and receives that it is made of")
    return assumed


def _rank(process: Process, members: Mapping[tuple[Process, int | None], Membership]) -> int | None:
    """Return the process's rank in its largest communicator, where it holds one rank of it."""
    held = [member for (other, _communicator), member in members.items() if other == process]
    largest = max(held, key=lambda member: member.ranks, default=None)
    return next(iter(largest.mine)) if largest and len(largest.mine) == 1 else None
