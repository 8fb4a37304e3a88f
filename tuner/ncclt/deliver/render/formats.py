"""Render a recommendation as the text that a launcher, a container or NCCL itself reads."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from ncclt.client.answer import GROUP_FORMS, AnswerError, comment_lines, form_of, require_group, write
from ncclt.core.attestation import Form
from ncclt.core.policy import Policy
from ncclt.core.recommendation import SHAPE_PARTS, Decision, Recommendation
from ncclt.core.trial import TimesOrigin
from ncclt.deliver.render.delivery import TABLE_FORMAT, compare_numerics, deliver_table, deliver_variables
from ncclt.deliver.render.table import FOREIGN_TABLE_FORMATS, render_foreign_table, render_table
from ncclt.errors import NoRecommendationError, SettingError, UsageError

ENV_SCHEMA = 1
"""Version of the document of the format `json`."""

TABLE_FORMATS = (TABLE_FORMAT, *FOREIGN_TABLE_FORMATS)
"""The formats that deliver the per-size policy; all others deliver variables."""

FORMATS = (
    *("export", "dotenv", "json", "nccl-conf", *TABLE_FORMATS, "slurm-taskprolog", "pyxis", "mpirun-x", "docker-env"),
    *("configmap", "trainjob-env", "cloudai", *GROUP_FORMS),
)
"""Names of the formats of `render`."""

SHELLS = ("bash", "fish", "csh")
"""Whose language `--shell` writes; `bash` is POSIX and holds for sh, dash and zsh as well, `csh` for tcsh."""


def render(
    recommendation: Recommendation,
    *,
    format: str,
    shell: str = "bash",
    unset: bool = False,
    channels: int | None = None,
    group: str = "",
    warn: Callable[[str], None] | None = None,
    said: Mapping[str, str] | None = None,
) -> str:
    """Return the recommendation as text of one format; it never delivers more than its verdict proves.

    Args:
        format: one of `FORMATS`. `TABLE_FORMATS` deliver the table, the others the variables.
        shell: `export` only: whose language it is, one of `SHELLS`.
        unset: `export` only: remove exactly what the same call without it sets.
        channels: `nvidia-csv` only: for rules that leave the number of channels to NCCL.
        group: `megatron-yaml` only: one of `MEGATRON_GROUPS`.
        warn: receives each remark where the text cannot hold comments: words for a command line, and csh, which allows
            them in scripts only, not in `eval`.
        said: `json` only: further entries of the answer, as variant and reason.

    Raises:
        NoRecommendationError: the proof ended undecided, `nvidia-csv` without a row, or options of a process group
            that was not measured by itself.
        UsageError: no such format or shell, or an option that the format does not have.
        SettingError: the policy cannot be compiled for this NCCL, or this format cannot express it.
    """
    check_form(format, shell=shell, unset=unset, channels=channels, group=group)
    _refuse_undecided(recommendation, format)
    if format == TABLE_FORMAT:
        return render_table(deliver_table(recommendation))
    if format in FOREIGN_TABLE_FORMATS:
        return render_foreign_table(deliver_table(recommendation), format=format, channels=channels)
    document = _document(recommendation)
    if format == "json":
        return json.dumps(document | dict(said or {}), indent=2) + "\n"
    text = render_variables(document, form=form_of(format, shell, unset), group=group)
    if warn and (format in ("mpirun-x", "docker-env") or shell == "csh"):
        for line in comment_lines(document["remarks"]):
            warn(line.removeprefix("# "))
    return text


def render_variables(document: Mapping[str, Any], *, form: str, uid: int | None = None, group: str = "") -> str:
    """Return the text of one form from a document of the format `json`.

    Args:
        document, form, uid, group: as for `ncclt.client.answer.write`.

    Raises:
        NoRecommendationError, SettingError: as `AnswerError` there.
    """
    try:
        return write(document, form, document["nccl_version"], uid, group)
    except AnswerError as error:
        if error.hint:
            raise NoRecommendationError(str(error), hint=error.hint) from error
        raise SettingError(str(error), hint="no variable of NCCL takes one") from error


def check_form(
    format: str, *, shell: str = "bash", unset: bool = False, channels: int | None = None, group: str = ""
) -> None:
    """Refuse an unknown format, an option that the format does not have, or one that it lacks.

    Raises:
        UsageError: one of these.
    """
    if format not in FORMATS:
        raise UsageError(f"unknown format {format!r}", hint=f"one of {', '.join(FORMATS)}")
    if shell not in SHELLS:
        raise UsageError(f"unknown shell {shell!r}", hint=f"one of {', '.join(SHELLS)}; bash is right for sh and zsh")
    if format != "export" and (unset or shell != "bash"):
        raise UsageError("--shell and --unset need --format export", hint=f"leave them out for {format}")
    if format != "nvidia-csv" and channels is not None:
        raise UsageError("--channels needs --format nvidia-csv", hint=f"leave it out for {format}")
    try:
        require_group(format, group)
    except AnswerError as error:
        raise UsageError(str(error), hint=error.hint) from error


def _refuse_undecided(recommendation: Recommendation, format: str) -> None:
    """Raise NoRecommendationError where a format would deliver nothing, and not because that is known to be right."""
    table, variables = recommendation.table, recommendation.variables
    asked = [table] if format in TABLE_FORMATS else [table, variables] if format == "json" else [variables or table]
    verdicts = [policy_verdict.verdict for policy_verdict in asked if policy_verdict]
    open_ones = [verdict for verdict in verdicts if verdict.decision is Decision.UNDECIDED]
    if open_ones and not any(verdict.decision is Decision.TUNED for verdict in verdicts):
        raise NoRecommendationError(
            f"{recommendation.model} on {recommendation.cluster} is undecided: {open_ones[0].reason}",
            hint="keeping the NCCL default; run the same `ncclt tune` with more --blocks to continue",
        )


def env_document(recommendation: Recommendation) -> dict[str, Any]:
    """Return the document of the format `json`, which holds both deliveries.

    `decision`, `speedup` and `interval` belong to `variables`; `table_verdict` belongs to `table`, which needs
    `table_parameters` in the environment beside it.

    Raises:
        NoRecommendationError: the proof ended undecided.
        SettingError: the policy cannot be compiled for this NCCL.
    """
    _refuse_undecided(recommendation, "json")
    return _document(recommendation)


def _document(recommendation: Recommendation) -> dict[str, Any]:
    delivery = deliver_variables(recommendation)
    valid, table = recommendation.fingerprint, recommendation.table
    effective = table.effective.to_document()
    verdict = delivery.proven.verdict if delivery.proven else None
    return {
        "schema": ENV_SCHEMA,
        "recommendation": recommendation.id,
        "cluster": recommendation.cluster,
        "model": recommendation.model,
        **{name: getattr(valid, name) for name in (*SHAPE_PARTS, "gpu", "fabric")},
        **({"site_variables": dict(valid.site_variables)} if recommendation.origin is TimesOrigin.MEASURED else {}),
        "decision": (verdict.decision if verdict else Decision.KEEP_DEFAULT).value,
        "speedup": verdict.speedup if verdict else None,
        "interval": verdict.to_document()["interval"] if verdict else None,
        "origin": recommendation.origin.value,
        "launcher": recommendation.launcher,
        "groups": [list(group) for group in sorted(recommendation.groups)],
        "variables": dict(delivery.variables),
        "lost": list(delivery.lost),
        "remarks": delivery.remarks(),
        "table": effective["rules"],
        "table_parameters": effective["parameters"],
        "table_verdict": table.verdict.to_document(),
        "same_bits": {
            form: compare_numerics(recommendation, policy, by_variables=form == Form.VARIABLES).same_bits.value
            for form, policy in (
                (Form.VARIABLES.value, delivery.proven.effective if delivery.proven else Policy()),
                (Form.TABLE.value, table.effective),
            )
        },
    }
