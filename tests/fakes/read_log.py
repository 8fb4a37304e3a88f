"""The facts of a log of NCCL that a test writes."""

from ncclt.nccl.log.facts import LogFacts
from ncclt.nccl.log.startup import LogReader


def read_log(*lines: str, **options: frozenset[str]) -> LogFacts:
    """Read the lines of `job.log`; the options are those of `LogReader`."""
    reader = LogReader(**options)
    reader.read([f"{line}\n" for line in lines], "job.log")
    return reader.facts()
