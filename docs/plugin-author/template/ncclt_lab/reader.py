"""Reader of communication logs with lines such as `lab-comm rank=0 step=1 all_reduce bfloat16 26214400 group=8`."""

import re
from collections.abc import Iterator

from ncclt.core.message import Collective, Message, parse_dtype
from ncclt.errors import TraceError
from ncclt.profile.reader import Call, Reader, Source

_COLLECTIVES = "|".join(Collective)
_LINE = re.compile(
    rf"lab-comm rank=(\d{{1,6}}) step=(\d{{1,9}}) ({_COLLECTIVES}) (\w+) (\d{{1,15}}) group=(\d{{1,6}})\b".encode()
)


class LabReader(Reader):
    """Reader of one log per rank."""

    name = "lab_log"
    empty = "there is no lab-comm line"
    hint = "start the job with LAB_LOG=comm"

    def begins(self, beginning: bytes) -> bool:
        """Return True for a document with a line of the log near its beginning."""
        return _LINE.search(beginning) is not None

    def calls(self, source: Source) -> Iterator[Call]:
        """Yield one call per line, then state the steps and ranks that were read."""
        steps: set[bytes] = set()
        for document in source.documents():
            here: set[int] = set()
            for match in filter(None, map(_LINE.search, document.stream)):
                rank, step, collective, dtype, size_bytes, group_size = match.groups()
                here.add(int(rank))
                steps.add(step)
                message = Message(
                    collective=Collective(collective.decode()),
                    dtype=parse_dtype(dtype.decode()),
                    size_bytes=int(size_bytes),
                    group_size=int(group_size),
                )
                yield Call(message=message, rank=int(rank))
            if twice := source.ranks & here:
                raise TraceError(f"rank {min(twice)} is in two files", hint="give one file per rank")
            source.ranks |= here
        source.steps, source.whole_file = len(steps), False
