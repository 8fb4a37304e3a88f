"""Reader of communication logs with lines such as `lab-comm rank=0 step=1 all_reduce bfloat16 26214400 group=8`."""

import re
from collections import Counter
from collections.abc import Iterator

from ncclt.core.message import Collective, Message
from ncclt.errors import TraceError
from ncclt.profile.reader import Call, Reader, Source

_COLLECTIVES = "|".join(Collective)
_LINE = re.compile(
    rf"lab-comm rank=(\d{{1,6}}) step=(\d{{1,9}}) ({_COLLECTIVES}) (\w+) (\d{{1,15}}) group=(\d{{1,6}})\b".encode()
)


class LabReader(Reader):
    """Reader of the logs of one job, one file per rank."""

    name = "lab_log"
    empty = "no lab-comm lines"
    hint = "start the job with LAB_LOG=comm"

    def begins(self, beginning: bytes) -> bool:
        """Return True for a line of the log near the beginning of a file."""
        return _LINE.search(beginning) is not None

    def calls(self, source: Source) -> Iterator[Call]:
        """Yield the calls of every rank."""
        steps: set[int] = set()
        for document in source.documents():  # unpacks archives and removes what launchers print before each line
            counts: Counter[tuple[int, Message]] = Counter()
            for line in document.stream:
                if match := _LINE.search(line):
                    rank, step, collective, dtype, size, group = (one.decode() for one in match.groups())
                    message = Message(
                        collective=Collective(collective), dtype=dtype, size_bytes=int(size), group_size=int(group)
                    )
                    counts[int(rank), message] += 1
                    steps.add(int(step))
            ranks = {rank for rank, _message in counts}
            if twice := source.ranks & ranks:
                raise TraceError(f"rank {min(twice)} is in two files", hint="give one file per rank")
            source.ranks |= ranks
            for (rank, message), count in counts.items():
                yield Call(message=message, rank=rank, count=count)
        source.steps, source.whole_file = len(steps), False
