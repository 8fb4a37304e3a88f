"""The tuner table: rows that a tuner plugin reads, in the format of NVIDIA's example plugin (2.27.5 and later)."""

from __future__ import annotations

from collections.abc import Iterable

from ncclt.client.answer import comment_lines, token
from ncclt.core.algo_proto_text import COLLECTIVE_WORDS
from ncclt.core.cluster import Fingerprint
from ncclt.core.policy import Rule
from ncclt.deliver.render.delivery import Delivery

HEADER_FORMAT = 1
"""Version of the first line, which our plugin checks (plugin/table.c) and NVIDIA's takes for a comment."""

COLUMNS = ("collective_type", "min_bytes", "max_bytes", "algorithm", "protocol", "channels", "nNodes", "nRanks")
"""NVIDIA's names, in order; no field may be empty, the plugin's strtok would shift the rest."""

NO_UPPER_END = 2**63 - 1
"""End of an open range: the largest number that every reader takes, signed or not, 64 bits wide; the example plugin
reads it with strtoull. NVIDIA's sample ends at 4294967295 and so leaves out calls of 4 GiB and more."""

ANY = -1
"""The plugin's wildcard; as a number of channels, "not chosen"."""

_LONGEST_ID = 64
"""Characters of an id that the plugin keeps."""

_WARNING = (
    "WARNING: made for the tuner plugin of ncclt. The example plugin of NVIDIA runs every call that matches no row, "
    "and every row with channels -1, on ONE channel."
)


def render_table(delivery: Delivery) -> str:
    """Return the table of a recommendation, one row per rule that names algorithm and protocol.

    The first line is how the plugin knows the table, and detects one that is cut off, edited or for another NCCL. A
    table cannot carry parameters: they are named in a comment and must be in the job's environment as well.
    """
    recommendation, valid = delivery.recommendation, delivery.recommendation.fingerprint
    rows = [table_row(rule, valid) for rule in delivery.rules]
    header = (
        f"# ncclt-table {HEADER_FORMAT} id={token(recommendation.id)[:_LONGEST_ID]} nccl={delivery.version} "
        f"nodes={valid.nodes} ranks={valid.world_size} rows={len(rows)} fnv1a={table_checksum(rows):016x}"
    )
    comments = comment_lines([*delivery.remarks(), *needs(delivery), _WARNING, ",".join(COLUMNS)])
    return "".join(f"{line}\n" for line in [header, *comments, *rows])


def needs(delivery: Delivery) -> list[str]:
    """Say which variables the environment must hold beside the table."""
    return [f"needs {name}={value} in the environment" for name, value in delivery.variables]


def table_checksum(rows: Iterable[str]) -> int:
    """Return FNV-1a, 64 bits (Fowler, Noll and Vo; RFC 9923), over all rows, each with its line feed."""
    value = 0xCBF29CE484222325
    for byte in "".join(f"{row}\n" for row in rows).encode():
        value = (value ^ byte) * 0x100000001B3 & (2**64 - 1)
    return value


def table_row(rule: Rule, valid: Fingerprint) -> str:
    """Return one row of `COLUMNS`."""
    whole_job = rule.group_size in (0, valid.world_size)
    fields = (
        COLLECTIVE_WORDS[rule.collective],
        rule.min_bytes,
        NO_UPPER_END if rule.max_bytes is None else rule.max_bytes,
        rule.algorithm,
        rule.protocol,
        ANY if rule.channels is None else rule.channels,
        # A rule does not say how a smaller group is placed on the nodes.
        valid.nodes if whole_job else ANY,
        valid.world_size if whole_job else rule.group_size,
    )
    return ",".join(str(field) for field in fields)
