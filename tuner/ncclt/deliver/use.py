"""The one command that uses a recommendation, chosen by what was proven."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from ncclt.core.attestation import Form
from ncclt.core.recommendation import Decision, PolicyVerdict, Recommendation
from ncclt.deliver.render.delivery import by_table, by_variables
from ncclt.nccl.compile import TUNER_API_SINCE


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveredForm:
    """How a recommendation is used.

    Attributes:
        form: in which it is delivered; None = in none; jobs keep the NCCL default.
        proven: policy and verdict of this form; without one those of the table.
        command: to type; empty where there is nothing to use.
        why: why nothing that was proven can be delivered; empty where something is, or nothing was proven.
    """

    form: Form | None
    proven: PolicyVerdict
    command: str = ""
    why: str = ""


def use_of(found: Recommendation, *, source: str = "", build: bool = False) -> DeliveredForm:
    """Return how a recommendation is used: by variables if they carry the gain, else by the table.

    Variables carry it if they were proven themselves, and their speed-up is within the interval of the table or above:
    then the proof shows no difference, and they need no plugin.

    Args:
        found: what was published.
        source: options that name its store or server, with a space before each.
        build: the tuner plugin has to be built first.
    """
    table, variables = found.table, found.variables
    by_rows = table.verdict.decision is Decision.TUNED and bool(by_table(found).rules)
    tabled = by_rows and found.fingerprint.version >= TUNER_API_SINCE
    plain = variables is not None and variables.verdict.decision is Decision.TUNED and by_variables(found).variables
    if variables and plain and not (tabled and variables.verdict.speedup < table.verdict.interval[0]):
        return _used(found, DeliveredForm(form=Form.VARIABLES, proven=variables), source, build=False)
    if tabled:
        return _used(found, DeliveredForm(form=Form.TABLE, proven=table), source, build=build)
    if by_rows:
        why = f"NCCL {found.fingerprint.version} cannot load a tuner table: that takes {TUNER_API_SINCE} or later"
    elif table.verdict.decision is Decision.TUNED:
        why = "what was proven is process-wide variables alone, which were not proven by themselves"
    else:
        why = ""
    return DeliveredForm(form=None, proven=table, why=why)


def _used(found: Recommendation, use: DeliveredForm, source: str, *, build: bool) -> DeliveredForm:
    """Return a use with its command; nothing uses a stale recommendation or a demonstration."""
    if found.label:
        why = f"run `ncclt tune` on your own cluster; {found.origin} timings are a demonstration"
        return DeliveredForm(form=use.form, proven=use.proven, why=why)
    if found.stale:
        return DeliveredForm(form=None, proven=use.proven, why=f"it is no longer served: {found.stale}")
    place, job = found.fingerprint, job_options(found, source=source)
    if use.form is Form.VARIABLES:
        command = f'eval "$(ncclt env {job})"'
    else:
        start = f"torchrun --nnodes={place.nodes} --nproc-per-node={place.gpus_per_node} train.py"
        shared = " --shared . --job NAME" if place.nodes > 1 else ""
        command = f"{'ncclt admin plugin build && ' if build else ''}ncclt run {job}{shared} -- {start}"
    return DeliveredForm(form=use.form, proven=use.proven, command=command)


def job_options(found: Recommendation, *, source: str = "") -> str:
    """Return the options of `ncclt env` and `ncclt run` that name the job which a recommendation is for.

    Args:
        found: what was published.
        source: options that name its store or server, with a space before each.
    """
    place = found.fingerprint
    return (
        f"--cluster {shlex.quote(found.cluster)} --model {shlex.quote(found.model)} --nodes {place.nodes} "
        f"--gpus-per-node {place.gpus_per_node} --nccl-version {place.nccl_version}{source}"
    )
