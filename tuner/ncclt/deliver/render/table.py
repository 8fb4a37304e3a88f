"""Tuner tables of a recommendation: of our plugin, and of third-party tuners.

Third parties are NVIDIA's and RCCL's example plugins, and the tuner built into Meta's NCCLX. Sources:
plugins/tuner/example/plugin.c of NCCL 2.30.7; ext-tuner/example/plugin.c of ROCm/rccl; README.md and CsvConfigParse.h
of comms/ncclx/meta/tuner in meta-pytorch/torchcomms (2026). None of them was tested on a GPU.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

from ncclt.client.answer import comment_lines, token
from ncclt.core.algo_proto_text import COLLECTIVE_WORDS
from ncclt.core.cluster import Fingerprint
from ncclt.core.message import format_bytes
from ncclt.core.plural import count_noun
from ncclt.core.policy import Rule
from ncclt.core.setting import max_channels
from ncclt.deliver.render.delivery import TABLE_FORMAT, Delivery
from ncclt.errors import NoRecommendationError, SettingError, UsageError
from ncclt.nccl.compile import rule_label
from ncclt.nccl.tuner_table import ANY, COLUMNS, communicator_shape, table_row, table_text

_WARNING = (
    "WARNING: for the ncclt tuner plugin only. The NVIDIA example plugin runs every call that matches no row, "
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
        comments=comment_lines([*delivery.remarks(), *list_needed_variables(delivery), _WARNING, ",".join(COLUMNS)]),
    )


def list_needed_variables(delivery: Delivery) -> list[str]:
    """List the variables that the environment must hold besides the table."""
    return [f"needs {name}={value} in the environment" for name, value in delivery.variables]


def render_row(rule: Rule, *, nodes: int, ranks: int) -> str:
    """Return the row of a rule for a job: for the communicators of all of it, or for those of its group."""
    group_nodes, group_ranks = communicator_shape(rule, nodes=nodes, ranks=ranks)
    return table_row(rule, nodes=group_nodes, ranks=group_ranks)


def _sections(rules: Sequence[Rule], valid: Fingerprint) -> list[str]:
    """Return the rows; where there are several kinds of communicators, those of each under a comment of their own."""
    job = {"nodes": valid.nodes, "ranks": valid.world_size}
    shapes = [communicator_shape(rule, **job) for rule in rules]
    lines: list[str] = []
    for (nodes, ranks), section in itertools.groupby(zip(shapes, rules, strict=True), key=lambda pair: pair[0]):
        if len(set(shapes)) > 1:
            where = "any nodes" if nodes == ANY else count_noun(nodes, "node")
            lines.append(f"# communicators of {ranks} ranks on {where}")
        lines += [render_row(rule, **job) for _, rule in section]
    return lines


FOREIGN_TABLE_FORMATS = ("nvidia-csv", "rccl-csv", "ncclx")

_OUR_PLUGIN = f"the ncclt plugin leaves such calls alone: --format {TABLE_FORMAT}"

_ONE_CHANNEL = (
    "WARNING: the NVIDIA example plugin runs every call that matches no row on ONE channel: other collectives, and "
    f"communicators of other sizes. On GPUs of compute capability 100 it changes the cost model as well; {_OUR_PLUGIN}"
)

_FOR_RCCL = (
    "for RCCL since ROCm/rocm-systems pull request 4503, which reads NCCL_TUNER_CONFIG_FILE itself unless "
    "NCCL_TUNER_PLUGIN names a plugin; RCCL_MSCCL_ENABLE=0 keeps MSCCL from taking calls before the table",
    "for the example plugin of RCCL since ROCm/rccl pull request 1985; before that it runs every call that matches no "
    "row, and every row with channels -1, on ONE channel",
)

_NCCLX = "for NCCLX_TUNER_CONFIG_FILE of the NCCLX of Meta; NCCL_TUNER_PLUGIN is not read beside it"

_NCCLX_COLUMNS = ("collective", "bytesPerRank", "algorithm", "protocol", "channels", "nNodes", "nLocalRanks")
"""The seven columns that every version requires; later ones differ between versions."""


def render_foreign_table(delivery: Delivery, *, format: str, channels: int | None = None) -> str:
    """Return the table of a recommendation in a foreign format.

    Args:
        format: one of `FOREIGN_TABLE_FORMATS`.
        channels: `nvidia-csv` only: for rules that leave the number of channels to NCCL.

    Raises:
        NoRecommendationError: `nvidia-csv` without a row, which would run everything on one channel.
        SettingError: `nvidia-csv`: a rule that it cannot deliver.
        UsageError: more channels than this NCCL has.
    """
    valid = delivery.recommendation.fingerprint
    job = {"nodes": valid.nodes, "ranks": valid.world_size}
    lost: list[str] = []
    match format:
        case "nvidia-csv":
            rules, lost = _for_nvidia(delivery, channels)
            rows = [render_row(rule, **job) for rule in rules]
            beside = [_ONE_CHANNEL, ",".join(COLUMNS)]
        case "rccl-csv":
            rows = [f"{render_row(rule, **job)},{ANY},{ANY}" for rule in delivery.rules]
            beside = [*_FOR_RCCL, ",".join((*COLUMNS, "numPipeOps", "regBuff"))]
        case _:
            rows, lost = _ncclx_rows(delivery.rules, valid)
            beside = [_NCCLX, ",".join(_NCCLX_COLUMNS)]
    comments = comment_lines([*delivery.remarks(*lost), *list_needed_variables(delivery), *beside])
    return "".join(f"{line}\n" for line in [*comments, *rows])


def _family(rule: Rule) -> tuple[int, int, str]:
    """Return the key of rules that share the sizes of one kind of communicator."""
    return rule.precedence[:3]


def _for_nvidia(delivery: Delivery, channels: int | None) -> tuple[list[Rule], list[str]]:
    """Return rules with channels that cover every size of their collective, and what that changes."""
    recommendation, rules, version = delivery.recommendation, delivery.rules, delivery.version
    if recommendation.table.effective.is_default:
        raise NoRecommendationError(
            f"keeping the NCCL default for {recommendation.model} on {recommendation.cluster}, and the example plugin "
            "of NVIDIA cannot leave it: without a row it runs every call on one channel",
            hint="start the job without it, or " + _OUR_PLUGIN,
        )
    if channels is not None and not 1 <= channels <= max_channels(version):
        raise UsageError(f"--channels must be 1 to {max_channels(version)} for NCCL {version}, not {channels}")
    unsaid = [r for r in recommendation.table.effective.rules if r.algorithm is None or r.protocol is None]
    if unsaid:
        raise SettingError(
            f"{rule_label(unsaid[0])}: a row must name algorithm and protocol, and the NVIDIA example plugin would "
            "run what has no row on one channel",
            hint=_OUR_PLUGIN,
        )
    open_ones = [rule for rule in rules if rule.channels is None]
    if open_ones and channels is None:
        raise SettingError(
            f"{rule_label(open_ones[0])}: it leaves the number of channels to NCCL, and the NVIDIA example plugin "
            "would run it on one channel",
            hint=f"give their number with --channels N, or {_OUR_PLUGIN}",
        )
    lost = [f"{rule_label(rule)}: on {channels} channels by --channels, which was not measured" for rule in open_ones]
    counted = [replace(rule, channels=channels) if rule.channels is None else rule for rule in rules]
    covering: list[Rule] = []
    for_any_group = {rule.collective for rule in rules if rule.group_size == 0}
    for (before, _, collective), rules_of_family in itertools.groupby(counted, key=_family):
        family = list(rules_of_family)
        # Sizes that the rules for the whole job leave open may be covered by the rules for any group after them.
        goes_on = -before == recommendation.fingerprint.world_size and collective in for_any_group
        covering += family if goes_on else _without_gaps(family, lost)
    if covering != counted:
        lost.insert(0, "the A/B test did not cover the sizes added below: they may be slower")
    without = sorted(c for c in recommendation.collectives if c.is_tunable and all(r.collective != c for r in rules))
    lost += [f"{collective}: it has no row, so this plugin runs it on ONE channel" for collective in without]
    return covering, lost


def _without_gaps(family: list[Rule], lost: list[str]) -> list[Rule]:
    """Return the rules of one collective and group from 0 bytes to any size, each reaching up to the next."""
    covering = []
    for position, rule in enumerate(family):
        first = rule.min_bytes if position else 0
        last = family[position + 1].min_bytes - 1 if position + 1 < len(family) else None
        if first < rule.min_bytes:
            lost.append(
                f"{rule_label(rule)}: extended below {format_bytes(rule.min_bytes)}, beyond the validated sizes"
            )
        if last != rule.max_bytes and rule.max_bytes is not None:
            lost.append(
                f"{rule_label(rule)}: extended above {format_bytes(rule.max_bytes)}, beyond the validated sizes"
            )
        covering.append(replace(rule, min_bytes=first, max_bytes=last))
    return covering


def _ncclx_rows(rules: Sequence[Rule], valid: Fingerprint) -> tuple[list[str], list[str]]:
    """Return rows by bytes per rank, first match first, and what that blurs.

    NCCLX divides the size by the ranks and drops the remainder, so a row reaches up to ranks - 1 bytes beyond the ends
    of its rule; where two rules meet, the first one has them. A group of fewer ranks is written once for every even
    way to place it on the nodes, as there is no column for the number of ranks.
    """
    rows, lost = [], []
    for _, family in itertools.groupby(rules, key=_family):
        covered_to = -1
        for rule in family:
            ranks = rule.group_size or valid.world_size
            places = [(valid.nodes, valid.gpus_per_node)] if ranks == valid.world_size else _places(ranks, valid)
            if rule.spans_nodes is not None:
                places = [place for place in places if (place[0] > 1) == rule.spans_nodes]
            first = max(rule.min_bytes // ranks, covered_to + 1)
            last = None if rule.max_bytes is None else rule.max_bytes // ranks
            if not places:
                lost.append(f"{rule_label(rule)}: no even way to lay {ranks} ranks over {valid.nodes} nodes")
                continue
            if last is not None and last < first:
                lost.append(f"{rule_label(rule)}: narrower than a byte per rank, by which NCCLX counts")
                continue
            is_wider = first * ranks < rule.min_bytes or (rule.max_bytes is not None and (rule.max_bytes + 1) % ranks)
            if is_wider:
                lost.append(f"{rule_label(rule)}: up to {ranks - 1} bytes more, as NCCLX counts bytes per rank")
            covered_to = covered_to if last is None else last
            span = f"[{first},{'' if last is None else last}{')' if last is None else ']'}"
            count = ANY if rule.channels is None else rule.channels
            rows += [
                f"{COLLECTIVE_WORDS[rule.collective]},{span},{rule.algorithm},{rule.protocol},{count},{nodes},{local}"
                for nodes, local in places
            ]
    return rows, lost


def _places(ranks: int, valid: Fingerprint) -> list[tuple[int, int]]:
    """Return (nodes, ranks on each) for every even way to place a group on the nodes of the job."""
    return [
        (nodes, ranks // nodes)
        for nodes in range(1, valid.nodes + 1)
        if ranks % nodes == 0 and ranks // nodes <= valid.gpus_per_node
    ]
