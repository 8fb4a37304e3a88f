"""The tuner table of a recommendation: rows that a tuner plugin reads."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from ncclt.client.answer import comment_lines, token
from ncclt.core.cluster import Fingerprint
from ncclt.core.policy import Rule
from ncclt.deliver.render.delivery import Delivery
from ncclt.nccl.tuner_table import ANY, COLUMNS, communicator_shape, table_row, table_text

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
    return table_text(
        _sections(delivery.rules, valid),
        table_id=token(recommendation.id),
        version=delivery.version,
        nodes=valid.nodes,
        ranks=valid.world_size,
        comments=comment_lines([*delivery.remarks(), *needs(delivery), _WARNING, ",".join(COLUMNS)]),
    )


def needs(delivery: Delivery) -> list[str]:
    """Say which variables the environment must hold beside the table."""
    return [f"needs {name}={value} in the environment" for name, value in delivery.variables]


def delivered_row(rule: Rule, valid: Fingerprint) -> str:
    """Return the row of a rule: for the communicators of the whole job, or for those of its group."""
    nodes, ranks = communicator_shape(rule, nodes=valid.nodes, ranks=valid.world_size)
    return table_row(rule, nodes=nodes, ranks=ranks)


def _sections(rules: Sequence[Rule], valid: Fingerprint) -> list[str]:
    """Return the rows; where there are several kinds of communicators, those of each under a comment of their own."""
    shapes = [communicator_shape(rule, nodes=valid.nodes, ranks=valid.world_size) for rule in rules]
    lines: list[str] = []
    for (nodes, ranks), section in itertools.groupby(zip(shapes, rules, strict=True), key=lambda pair: pair[0]):
        if len(set(shapes)) > 1:
            where = "any nodes" if nodes == ANY else f"{nodes} node{'s' if nodes > 1 else ''}"
            lines.append(f"# communicators of {ranks} ranks on {where}")
        lines += [delivered_row(rule, valid) for _, rule in section]
    return lines
