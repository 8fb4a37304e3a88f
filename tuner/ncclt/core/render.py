"""From a recommendation to the text that a launcher, a container or NCCL itself reads."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from typing import Any

from ncclt.core.compile import Compiled, compile_policy
from ncclt.core.policy import Policy
from ncclt.core.recommendation import Decision, Delivery, Recommendation
from ncclt.core.remark import comment_lines, remarks, token
from ncclt.core.render_table import TABLE_FORMAT, render_table
from ncclt.core.version import NcclVersion
from ncclt.errors import NoRecommendationError, SettingError, UsageError

ENV_SCHEMA = 1
"""Version of the document of the format `json`."""

FORMATS = ("export", "dotenv", "json", "nccl-conf", TABLE_FORMAT)
"""What `render` writes."""

_CONF_VALUE_LENGTH = 1023
"""Longest value in nccl.conf (NCCL src/misc/param.cc:27-56, 2.30.7)."""


def render(recommendation: Recommendation, *, format: str, version: NcclVersion) -> str:
    """Return the recommendation as text of one format; never more than what its verdict proves.

    Args:
        recommendation: what was published.
        format: one of `FORMATS`. `tuner-csv` delivers the table, the others the variables.
        version: NCCL of the job; must be the one that was measured.

    Raises:
        NoRecommendationError: measured with another NCCL.
        UsageError: no such format.
        SettingError: the policy cannot be compiled for this NCCL.
    """
    if format not in FORMATS:
        raise UsageError(f"unknown format {format!r}", hint=f"one of {', '.join(FORMATS)}")
    measured = recommendation.fingerprint.nccl_version
    if version != NcclVersion.parse(measured):
        raise NoRecommendationError(
            f"{recommendation.model} on {recommendation.cluster} was tuned with NCCL {measured}, not with {version}",
            hint=f"what is best on one NCCL may be wrong on the next; tune again with NCCL {version}",
        )
    if format == TABLE_FORMAT:
        return render_table(recommendation, version=version)
    delivery = recommendation.variables
    policy = delivery.effective if delivery else Policy()
    compiled = compile_policy(policy, version=version, collectives=recommendation.collectives)
    if not compiled.variables and not policy.is_default:
        delivery = None  # nothing of it can be said, so nothing may be claimed either
    compiled = replace(compiled, lost=(*_left_to_the_table(recommendation, delivery), *compiled.lost))
    match format:
        case "export":
            return _render_export(recommendation, delivery, compiled)
        case "dotenv":
            return _render_dotenv(recommendation, delivery, compiled)
        case "nccl-conf":
            return _render_nccl_conf(recommendation, delivery, compiled)
        case _:
            return _render_json(recommendation, delivery, compiled)


def _left_to_the_table(recommendation: Recommendation, delivery: Delivery | None) -> tuple[str, ...]:
    """Say what the per-size policy proves beyond the variables; nothing where it proves no more."""
    table = recommendation.table
    if table.effective.is_default or (delivery is not None and delivery.effective == table.policy):
        return ()
    return (
        f"the per-size policy, {table.verdict.speedup:.2f}x, which variables cannot express; "
        f"--format {TABLE_FORMAT} delivers it",
    )


def _trace(recommendation: Recommendation) -> list[tuple[str, str]]:
    """Return the variables by which a job can be traced back to what it was given."""
    traced = [("NCCLT_RECOMMENDATION", token(recommendation.id))]
    return [*traced, ("NCCLT_SIMULATED", "1")] if recommendation.simulated else traced


def _render_export(recommendation: Recommendation, delivery: Delivery | None, compiled: Compiled) -> str:
    """Return shell code for `eval`; comments come last, as an unquoted eval joins all lines into one."""
    variables = [*compiled.variables, *_trace(recommendation)]
    lines = [f"export {name}={shlex.quote(value)}" for name, value in variables]
    return _text(lines + comment_lines(remarks(recommendation, delivery, compiled.lost)))


def _render_dotenv(recommendation: Recommendation, delivery: Delivery | None, compiled: Compiled) -> str:
    """Return NAME=value lines as `docker run --env-file` takes them: verbatim, quotes would become part of them."""
    lines = [f"{name}={value}" for name, value in [*compiled.variables, *_trace(recommendation)]]
    return _text(comment_lines(remarks(recommendation, delivery, compiled.lost)) + lines)


def _render_nccl_conf(recommendation: Recommendation, delivery: Delivery | None, compiled: Compiled) -> str:
    """Return a file for NCCL_CONF_FILE or /etc/nccl.conf, which NCCL reads itself, so with its own names only."""
    for name, value in compiled.variables:
        if len(value) > _CONF_VALUE_LENGTH:
            raise SettingError(
                f"{name} has {len(value)} characters, nccl.conf takes {_CONF_VALUE_LENGTH}", hint="use another format"
            )
    lines = [f"{name}={value}" for name, value in compiled.variables]
    return _text(comment_lines(remarks(recommendation, delivery, compiled.lost)) + lines)


def _render_json(recommendation: Recommendation, delivery: Delivery | None, compiled: Compiled) -> str:
    """Return both deliveries as one document.

    `decision`, `speedup` and `interval` belong to `variables`; `table_verdict` belongs to `table`, which needs
    `table_parameters` in the environment beside it.
    """
    valid, table = recommendation.fingerprint, recommendation.table
    effective = table.effective.to_document()
    verdict = delivery.verdict if delivery else None
    document: dict[str, Any] = {
        "schema": ENV_SCHEMA,
        "recommendation": recommendation.id,
        "cluster": recommendation.cluster,
        "model": recommendation.model,
        "nodes": valid.nodes,
        "gpus_per_node": valid.gpus_per_node,
        "nccl_version": valid.nccl_version,
        "decision": (verdict.decision if verdict else Decision.KEEP_DEFAULT).value,
        "speedup": verdict.speedup if verdict else None,
        "interval": verdict.to_document()["interval"] if verdict else None,
        "simulated": recommendation.simulated,
        "launcher": recommendation.launcher,
        "variables": dict(compiled.variables),
        "lost": list(compiled.lost),
        "table": effective["rules"],
        "table_parameters": effective["parameters"],
        "table_verdict": table.verdict.to_document(),
    }
    return json.dumps(document, indent=2) + "\n"


def _text(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
