"""The tuner table: rows that a tuner plugin reads, in the format of NVIDIA's example plugin (2.27.5 and later)."""

from __future__ import annotations

from collections.abc import Iterable

from ncclt.client.answer import comment_lines
from ncclt.core.algo_proto_text import COLLECTIVE_WORDS
from ncclt.core.nccl_version import NcclVersion
from ncclt.core.policy import Policy, Rule
from ncclt.core.recommendation import Recommendation
from ncclt.deliver.render.comments import remarks, token
from ncclt.nccl.compile import TUNER_API_SINCE, check_rule, compile_policy, rule_label

TABLE_FORMAT = "tuner-csv"

HEADER_FORMAT = 1
"""Version of the first line, which our plugin checks (plugin/table.c); for NVIDIA's it is a comment."""

COLUMNS = ("collective_type", "min_bytes", "max_bytes", "algorithm", "protocol", "channels", "nNodes", "nRanks")
"""NVIDIA's names, in order; no field may be empty, the plugin's strtok would shift the rest."""

NO_UPPER_END = 2**63 - 1
"""What an open range ends with: the largest number that every reader takes, signed or not, 64 bits wide. The example
plugin reads it with strtoull. NVIDIA's sample ends at 4294967295 and so leaves out calls of 4 GiB and more."""

ANY = -1
"""The plugin's word for "whatever it is"; as a number of channels "not chosen"."""

_LONGEST_ID = 64
"""As the plugin keeps it."""

_WARNING = (
    "WARNING: made for the tuner plugin of ncclt. The example plugin of NVIDIA runs every call that matches no row, "
    "and every row with channels -1, on ONE channel."
)


def render_table(recommendation: Recommendation, *, version: NcclVersion) -> str:
    """Return the table of a recommendation, one row per rule that names algorithm and protocol.

    A table cannot carry parameters: they are named in a comment and must be in the job's environment as well.

    Raises:
        SettingError: a rule or parameter that this NCCL does not have.
    """
    rules, lost, needs = table_rules(recommendation, version)
    rows = [table_row(rule, recommendation) for rule in rules]
    said = remarks(recommendation, recommendation.table, lost)
    header = _header(rows, recommendation, version)
    return "".join(f"{line}\n" for line in [header, *comment_lines(_head(said, needs)), *rows])


def table_rules(recommendation: Recommendation, version: NcclVersion) -> tuple[list[Rule], list[str], list[str]]:
    """Return the rules that become rows, exact groups first, what is lost, and what the environment must hold as well.

    Raises:
        SettingError: a rule or parameter that this NCCL does not have.
    """
    policy = recommendation.table.effective
    rules, lost = [], []
    if policy.rules and version < TUNER_API_SINCE:
        lost.append(f"all of it: NCCL {version} has no tuner API that a plugin of today speaks ({TUNER_API_SINCE})")
    for rule in sorted(policy.rules, key=lambda r: (r.collective, -r.group_size, r.min_bytes)):
        check_rule(rule, version)
        if rule.algorithm is None or rule.protocol is None:
            lost.append(f"{rule_label(rule)}: a row must name algorithm and protocol")
        else:
            rules.append(rule)
    parameters = compile_policy(
        Policy(parameters=policy.parameters), version=version, collectives=recommendation.collectives
    )
    needs = [f"needs {name}={value} in the environment" for name, value in parameters.variables]
    return rules, [*lost, *parameters.lost], needs


def _header(rows: list[str], recommendation: Recommendation, version: NcclVersion) -> str:
    """Return the line by which the plugin knows the table, and finds one that is cut off, edited or of another NCCL."""
    valid = recommendation.fingerprint
    return (
        f"# ncclt-table {HEADER_FORMAT} id={token(recommendation.id)[:_LONGEST_ID]} nccl={version} nodes={valid.nodes} "
        f"ranks={valid.nodes * valid.gpus_per_node} rows={len(rows)} fnv1a={table_checksum(rows):016x}"
    )


def table_checksum(rows: Iterable[str]) -> int:
    """Return FNV-1a, 64 bits (Fowler, Noll and Vo; RFC 9923), over all rows, each with its line feed."""
    value = 0xCBF29CE484222325
    for byte in "".join(f"{row}\n" for row in rows).encode():
        value = (value ^ byte) * 0x100000001B3 & (2**64 - 1)
    return value


def _head(said: list[str], needs: list[str]) -> Iterable[str]:
    return [*said, *needs, _WARNING, ",".join(COLUMNS)]


def table_row(rule: Rule, recommendation: Recommendation) -> str:
    """Return one row of `COLUMNS`."""
    valid = recommendation.fingerprint
    world_size = valid.nodes * valid.gpus_per_node
    whole_job = rule.group_size in (0, world_size)
    fields = (
        COLLECTIVE_WORDS[rule.collective],
        rule.min_bytes,
        NO_UPPER_END if rule.max_bytes is None else rule.max_bytes,
        rule.algorithm,
        rule.protocol,
        ANY if rule.channels is None else rule.channels,
        # How a smaller group lies over the nodes is not part of a rule.
        valid.nodes if whole_job else ANY,
        world_size if whole_job else rule.group_size,
    )
    return ",".join(str(field) for field in fields)
