"""Render a recommendation as the text that a launcher, a container or NCCL itself reads."""

from __future__ import annotations

import json
from typing import Any

from ncclt.client.answer import comment_lines
from ncclt.core.recommendation import Decision, Recommendation
from ncclt.deliver.render.delivery import TABLE_FORMAT, by_table, by_variables, token
from ncclt.deliver.render.foreign_table import FOREIGN_TABLE_FORMATS, render_foreign_table
from ncclt.deliver.render.prolog import PrologJob, task_prolog
from ncclt.deliver.render.shell import Variables, assignments, check_shell, option_words, pyxis_lines, removals
from ncclt.deliver.render.table import render_table
from ncclt.errors import NoRecommendationError, SettingError, UsageError

ENV_SCHEMA = 1
"""Version of the document of the format `json`."""

TABLE_FORMATS = (TABLE_FORMAT, *FOREIGN_TABLE_FORMATS)
"""The formats that deliver the per-size policy; all others deliver variables."""

FORMATS = (
    "export", "dotenv", "json", "nccl-conf", TABLE_FORMAT, *FOREIGN_TABLE_FORMATS, "slurm-taskprolog", "pyxis",
    "mpirun-x", "docker-env", "configmap", "trainjob-env",
)  # fmt: skip
"""What `render` writes."""

WORD_OPTIONS = {"mpirun-x": "-x", "docker-env": "--env"}
"""The formats that are words for a command line, with the option of that command."""

_CONF_VALUE_LENGTH = 1023
"""Longest value in nccl.conf (NCCL src/misc/param.cc:27-56, 2.30.7)."""


def render(
    recommendation: Recommendation,
    *,
    format: str,
    shell: str = "bash",
    unset: bool = False,
    channels: int | None = None,
) -> str:
    """Return the recommendation as text of one format; it never delivers more than its verdict proves.

    Args:
        recommendation: what was published.
        format: one of `FORMATS`. `TABLE_FORMATS` deliver the table, the others the variables.
        shell: `export` only: whose language it is, one of `SHELLS`.
        unset: `export` only: remove exactly what the same call without it sets.
        channels: `nvidia-csv` only: for rules that leave the number of channels to NCCL.

    Raises:
        NoRecommendationError: the proof ended undecided, or `nvidia-csv` without a row.
        UsageError: no such format or shell, or an option that the format does not have.
        SettingError: the policy cannot be compiled for this NCCL, or this format cannot express it.
    """
    check_form(format, shell=shell, unset=unset, channels=channels)
    if format == "json":
        return json.dumps(env_document(recommendation), indent=2) + "\n"
    _refuse_undecided(recommendation, format)
    if format == TABLE_FORMAT:
        return render_table(by_table(recommendation))
    if format in FOREIGN_TABLE_FORMATS:
        return render_foreign_table(by_table(recommendation), format=format, channels=channels)
    delivery = by_variables(recommendation)
    comments = comment_lines(delivery.remarks())
    variables = [*delivery.variables, *_trace(recommendation)]
    match format:
        case "export":
            return _render_export(variables, comments, shell=shell, unset=unset)
        case "dotenv":
            # As `docker run --env-file` takes them: verbatim, quotes would become part of the value.
            return _text([*comments, *(f"{name}={value}" for name, value in variables)])
        case "nccl-conf":
            return _render_nccl_conf(delivery.variables, comments)
        case "slurm-taskprolog":
            valid = recommendation.fingerprint
            job = PrologJob(model=recommendation.model, nodes=valid.nodes, gpus_per_node=valid.gpus_per_node)
            return task_prolog(variables, comments, job=job)
        case "pyxis":
            return _text([*pyxis_lines(variables), *comments])
        case "mpirun-x" | "docker-env":
            return option_words(WORD_OPTIONS[format], variables)
        case _:
            return _render_kubernetes(recommendation, format, variables, comments)


def check_form(format: str, *, shell: str = "bash", unset: bool = False, channels: int | None = None) -> None:
    """Refuse an unknown format, or an option that the format does not have.

    Raises:
        UsageError: one of both.
    """
    if format not in FORMATS:
        raise UsageError(f"unknown format {format!r}", hint=f"one of {', '.join(FORMATS)}")
    check_shell(shell)
    if format != "export" and (unset or shell != "bash"):
        raise UsageError("--shell and --unset need --format export", hint=f"leave them out for {format}")
    if format != "nvidia-csv" and channels is not None:
        raise UsageError("--channels needs --format nvidia-csv", hint=f"leave it out for {format}")


def remarks_left_out(recommendation: Recommendation, *, format: str, shell: str) -> list[str]:
    """Return the remarks for a text that cannot hold comments; empty where the text has them itself.

    Words for a command line have no comments, and csh allows them in scripts only, not in `eval`.
    """
    if format not in WORD_OPTIONS and not (format == "export" and shell == "csh"):
        return []
    return comment_lines(by_variables(recommendation).remarks())


def _refuse_undecided(recommendation: Recommendation, format: str) -> None:
    """Raise NoRecommendationError where a format would deliver nothing, and not because that is known to be right."""
    table, variables = recommendation.table, recommendation.variables
    match format:
        case _ if format in TABLE_FORMATS:
            asked = [table]
        case "json":
            asked = [table, *([variables] if variables else [])]
        case _:
            asked = [variables or table]
    verdicts = [policy_verdict.verdict for policy_verdict in asked]
    open_ones = [verdict for verdict in verdicts if verdict.decision is Decision.UNDECIDED]
    if open_ones and not any(verdict.decision is Decision.TUNED for verdict in verdicts):
        raise NoRecommendationError(
            f"{recommendation.model} on {recommendation.cluster} is undecided: {open_ones[0].reason}",
            hint="NCCL's own choice stays; the same `ncclt tune` with more --blocks goes on",
        )


def _trace(recommendation: Recommendation) -> list[tuple[str, str]]:
    """Return the variables that trace a job back to its recommendation."""
    traced = [("NCCLT_RECOMMENDATION", token(recommendation.id))]
    return [*traced, ("NCCLT_SIMULATED", "1")] if recommendation.simulated else traced


def _render_export(variables: Variables, comments: list[str], *, shell: str, unset: bool) -> str:
    """Return shell code for `eval`; comments come last, as an unquoted eval joins all lines into one."""
    lines = removals((name for name, _ in variables), shell) if unset else assignments(variables, shell)
    # csh knows comments in scripts only.
    return _text([*lines, *([] if shell == "csh" or unset else comments)])


def _render_nccl_conf(variables: Variables, comments: list[str]) -> str:
    """Return a file for NCCL_CONF_FILE or /etc/nccl.conf, which NCCL reads itself, so with its own names only."""
    for name, value in variables:
        if len(value) > _CONF_VALUE_LENGTH:
            raise SettingError(
                f"{name} has {len(value)} characters, nccl.conf takes {_CONF_VALUE_LENGTH}", hint="use another format"
            )
    return _text([*comments, *(f"{name}={value}" for name, value in variables)])


def _render_kubernetes(recommendation: Recommendation, format: str, variables: Variables, comments: list[str]) -> str:
    # Imported here: only these formats need a hash, and `ncclt env` must start fast.
    from ncclt.deliver.render.kubernetes import render_configmap, render_env_list

    if format == "configmap":
        return render_configmap(recommendation, variables, comments)
    return render_env_list(variables, comments)


def env_document(recommendation: Recommendation) -> dict[str, Any]:
    """Return the document of the format `json`, which holds both deliveries.

    `decision`, `speedup` and `interval` belong to `variables`; `table_verdict` belongs to `table`, which needs
    `table_parameters` in the environment beside it.

    Raises:
        NoRecommendationError: the proof ended undecided.
        SettingError: the policy cannot be compiled for this NCCL.
    """
    _refuse_undecided(recommendation, "json")
    delivery = by_variables(recommendation)
    valid, table = recommendation.fingerprint, recommendation.table
    effective = table.effective.to_document()
    verdict = delivery.proven.verdict if delivery.proven else None
    return {
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
        "variables": dict(delivery.variables),
        "lost": list(delivery.lost),
        "remarks": delivery.remarks(),
        "table": effective["rules"],
        "table_parameters": effective["parameters"],
        "table_verdict": table.verdict.to_document(),
    }


def _text(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
