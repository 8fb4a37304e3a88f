"""Messages and workloads of a few figures."""

from ncclt.core.message import Collective, Message
from ncclt.core.workload import MessageCalls, Provenance, Workload


def message(size=8, collective=Collective.ALL_REDUCE, *, dtype="uint8", group=0, spans=False):
    return Message(collective=collective, dtype=dtype, size_bytes=size, group_size=group, spans_nodes=spans)


def calls(size=8, count=1.0, collective=Collective.ALL_REDUCE, *, us=None, **more):
    return MessageCalls(message=message(size, collective, **more), calls_per_step=count, recorded_us=us)


def workload(*calls, source="made", world_size=0, **more):
    origin = more.pop("origin", Provenance(source=source, world_size=world_size))
    return Workload(name="w", messages=calls, provenance=origin, **more)
