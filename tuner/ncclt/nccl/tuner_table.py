"""The text of a table that a tuner plugin reads, in the format of NVIDIA's example plugin (2.27.5 and later)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ncclt.core.algo_proto_text import COLLECTIVE_WORDS
from ncclt.core.nccl_version import NcclVersion
from ncclt.core.policy import Rule

HEADER_FORMAT = 1
"""Version of the first line, which our plugin checks (plugin/table.c) and NVIDIA's takes for a comment."""

COLUMNS = ("collective_type", "min_bytes", "max_bytes", "algorithm", "protocol", "channels", "nNodes", "nRanks")
"""NVIDIA's names, in order; no field may be empty, the plugin's strtok would shift the rest."""

FUNCTIONS = ("broadcast", "reduce", "allgather", "reducescatter", "allreduce")
ALGORITHMS = ("tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat")
PROTOCOLS = ("ll", "ll128", "simple")
"""The words of a table; NCCL's numbers for them are the positions (2.23 and later)."""

NO_UPPER_END = 2**63 - 1
"""End of an open range: the largest number that every reader takes, signed or not, 64 bits wide; the example plugin
reads it with strtoull. NVIDIA's sample ends at 4294967295 and so leaves out calls of 4 GiB and more."""

ANY = -1
"""The plugin's wildcard; as a number of channels, "not chosen"."""

LONGEST_ID = 64
"""Characters of an id that the plugin keeps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginRow:
    """One row of a table; the first one that fits a call counts.

    Attributes:
        collective, algorithm, protocol: words of `FUNCTIONS`, `ALGORITHMS` and `PROTOCOLS`.
        first_bytes, last_bytes: tuning sizes, both inclusive; last_bytes None = no upper end.
        channels: 0 = left to NCCL.
        nodes, ranks: of the communicators that the row applies to; 0 = any.
    """

    collective: str
    algorithm: str
    protocol: str
    first_bytes: int = 0
    last_bytes: int | None = None
    channels: int = 0
    nodes: int = 0
    ranks: int = 0

    def text(self) -> str:
        """Return the row in the order of `COLUMNS`."""
        last = NO_UPPER_END if self.last_bytes is None else self.last_bytes
        choice = (self.algorithm, self.protocol, self.channels or ANY)
        fields = (self.collective, self.first_bytes, last, *choice, self.nodes or ANY, self.ranks or ANY)
        return ",".join(map(str, fields))


def table_text(
    rows: Sequence[str], *, table_id: str, version: NcclVersion, nodes: int, ranks: int, comments: Iterable[str] = ()
) -> str:
    """Return a table with the first line by which the plugin knows it, and detects one that is cut off or edited.

    Args:
        rows: of `table_row`, in order: the first that fits a call counts. Lines among them that begin with `#` are
            comments.
        comments: lines that begin with `#`.
    """
    counted = [row for row in rows if not row.startswith("#")]
    header = (
        f"# ncclt-table {HEADER_FORMAT} id={table_id[:LONGEST_ID]} nccl={version} nodes={nodes} ranks={ranks} "
        f"rows={len(counted)} fnv1a={table_checksum(counted):016x}"
    )
    return "".join(f"{line}\n" for line in [header, *comments, *rows])


def table_row(rule: Rule, *, nodes: int, ranks: int) -> str:
    """Return one row of `COLUMNS`; its arguments are those of `plugin_row`."""
    return plugin_row(rule, nodes=nodes, ranks=ranks).text()


def plugin_row(rule: Rule, *, nodes: int, ranks: int) -> PluginRow:
    """Return the row of a rule that names algorithm and protocol, for communicators of this shape.

    Args:
        rule: its group size is not looked at.
        nodes, ranks: of the communicators; `ANY` = of any number.
    """
    return PluginRow(
        collective=COLLECTIVE_WORDS[rule.collective],
        algorithm=str(rule.algorithm),
        protocol=str(rule.protocol),
        first_bytes=rule.min_bytes,
        last_bytes=rule.max_bytes,
        channels=rule.channels or 0,
        nodes=max(nodes, 0),
        ranks=max(ranks, 0),
    )


def communicator_shape(rule: Rule, *, nodes: int, ranks: int) -> tuple[int, int]:
    """Return nodes and ranks of the communicators that a rule of a job is for; `ANY` = any number of nodes.

    A group across nodes was measured on as many as it can span (`group_variables`, `plan_groups`): on fewer nodes it is
    another group, whose times are not known.

    Args:
        rule: of any group is taken for the whole job.
    """
    if rule.group_size in (0, ranks):
        return nodes, ranks
    if rule.spans_nodes is None:
        return ANY, rule.group_size
    return min(nodes, rule.group_size) if rule.spans_nodes else 1, rule.group_size


def table_checksum(rows: Iterable[str]) -> int:
    """Return the checksum of all rows, each with its line feed."""
    return fnv1a("".join(f"{row}\n" for row in rows).encode())


def fnv1a(data: bytes) -> int:
    """Return FNV-1a, 64 bits (Fowler, Noll and Vo; RFC 9923)."""
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 & (2**64 - 1)
    return value
