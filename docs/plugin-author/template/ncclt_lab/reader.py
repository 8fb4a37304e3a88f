"""Reader of communication logs with lines such as `lab-comm rank=0 step=1 all_reduce bfloat16 26214400 group=8`."""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from ncclt.core.message import Collective, Message
from ncclt.core.workload import MessageCalls, Provenance, Workload
from ncclt.errors import TraceError
from ncclt.profile.source import any_head, documents

name = "lab_log"

_COLLECTIVES = "|".join(Collective)
_LINE = re.compile(
    rf"lab-comm rank=(\d{{1,6}}) step=(\d{{1,9}}) ({_COLLECTIVES}) (\w+) (\d{{1,15}}) group=(\d{{1,6}})\b".encode()
)


def recognises(path: Path) -> bool:
    """Return True for a file with a line of the log near its beginning."""
    return any_head(path, _LINE.search)


def read(paths: Sequence[Path], *, name: str) -> Workload:
    """Read the logs of one job, one file per rank; the busiest rank stands for all."""
    ranks: dict[int, Counter[Message]] = {}
    steps: set[int] = set()
    labels: list[str] = []
    for path in paths:
        for document in documents(path):  # unpacks archives and removes what launchers print before each line
            labels.append(document.label)
            found_here: dict[int, Counter[Message]] = {}
            for line in document.stream:
                if match := _LINE.search(line):
                    rank, step, collective, dtype, size, group = (one.decode() for one in match.groups())
                    message = Message(
                        collective=Collective(collective), dtype=dtype, size_bytes=int(size), group_size=int(group)
                    )
                    found_here.setdefault(int(rank), Counter())[message] += 1
                    steps.add(int(step))
            if twice := ranks.keys() & found_here.keys():
                raise TraceError(f"rank {min(twice)} is in two files", hint="give one file per rank")
            ranks |= found_here
    if not ranks:
        raise TraceError(f"no lab-comm lines in {', '.join(labels)}", hint="start the job with LAB_LOG=comm")
    busiest = max(sorted(ranks), key=lambda rank: sum(m.size_bytes * n for m, n in ranks[rank].items()))
    origin = Provenance(
        source="lab_log",
        detail={"files": ", ".join(sorted(labels))},
        ranks_read=tuple(sorted(ranks)),
        steps=len(steps),
        notes=(f"calls per step of rank {busiest}, the busiest of {len(ranks)} read",),
    )
    calls = ranks[busiest].items()
    messages = tuple(MessageCalls(message=message, calls_per_step=count / len(steps)) for message, count in calls)
    return Workload(name=name, messages=messages, provenance=origin)
