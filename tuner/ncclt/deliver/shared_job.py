"""`ncclt run --shared`: the job decides once, whichever of its processes comes first, and this process follows."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ncclt.core.attestation import Form
from ncclt.deliver.agreement import (
    JobAgreement,
    await_decision,
    decide,
    file_system_of_one_node,
    find_decision,
    usable_folder,
)
from ncclt.deliver.handover import Handover, Offer, effective
from ncclt.deliver.job import Job, is_alone, job_of
from ncclt.deliver.offer import OfferTexts
from ncclt.errors import InputError, NccltError, NotFoundError, StoreError, UsageError, described

_LONG_AGO_S = 86400.0
"""A decision of this age is rather of an earlier job whose name was used again, and that is said."""

Plan = Callable[[Offer | None, Form | None], Handover]
"""What would be set here for an offer, in no other form than this one; None = whatever is best."""


def deciding_job(arguments: argparse.Namespace, command: Sequence[str], environ: Mapping[str, str]) -> Job | None:
    """Return the job that must decide once; None where this process is the only one that decides.

    Raises:
        UsageError: there are several such processes, and nothing says which job they belong to.
    """
    # Empty is no name, and not the same as none: in a pod it is a label that is not there.
    named = environ.get("NCCLT_JOB") if arguments.job is None else arguments.job
    if named is None and is_alone(environ, command, nodes=arguments.nodes):
        return None
    job = job_of(environ, command, named=named, nodes=arguments.nodes)
    if job is not None:
        return job
    raise UsageError(
        "this command is started several times for one job, and nothing says which job it is",
        hint="give it a name that is equal on all nodes and new for every start: --job NAME, NCCLT_JOB, or --rdzv-id",
    )


def agree(
    arguments: argparse.Namespace,
    folder: Path,
    job: Job,
    *,
    question: str,
    ask: Callable[[], OfferTexts],
    plan: Plan,
    tell: Callable[[str], None],
) -> tuple[Offer | None, Handover]:
    """Return what the job was given, decided here if nobody has yet, and what that means for this process.

    Args:
        arguments: with nodes, dry_run, fallback and wait.
        folder: shared by the job's nodes.
        job: that decides once.
        question: what is decided, equal on all nodes.
        ask: gives the offer, where nobody has decided yet.
        plan: gives what an offer means here.
        tell: takes a line for people, as soon as it is known.

    Raises:
        StoreError: the decision cannot be learnt: the job must not start here.
        UsageError: here something else would be in effect than the decision says.
        NccltError: with --fallback fail, why nothing was offered.
    """
    folder = usable_folder(folder)
    kind = file_system_of_one_node(folder)
    if kind and arguments.nodes != 1:
        tell(
            f"ncclt: {folder} is on {kind}, which other nodes do not see unless this one exports it: if this job has "
            "several, each would decide alone, and NCCL can hang"
        )
    found = find_decision(folder, job, question=question)
    if found is None:
        answer = _asked(arguments, folder, job, question, ask, tell)
        found = answer if isinstance(answer, JobAgreement) else None
        if not isinstance(answer, JobAgreement):
            texts = answer if isinstance(answer, OfferTexts) else None
            content = _content(texts, plan, why=answer if isinstance(answer, str) else "")
            if arguments.dry_run:
                tell("ncclt: no node has decided for this job yet; this would be proposed")
                offer = texts.offer() if texts else None
                return offer, plan(offer, None)
            found = decide(folder, job, question=question, content=content)
    assert found is not None
    return _followed(found, plan, tell)


def _asked(
    arguments: argparse.Namespace,
    folder: Path,
    job: Job,
    question: str,
    ask: Callable[[], OfferTexts],
    tell: Callable[[str], None],
) -> OfferTexts | JobAgreement | str:
    """Return an offer; else, where none can be had here, what others decided meanwhile; else why there is none."""
    try:
        return ask()
    except NotFoundError as error:
        if arguments.fallback == "fail":
            raise
        return _said(error, tell)
    except Exception as error:
        # Another node may reach what this one cannot: who comes first with an answer shall decide.
        why = _said(described(error), tell)
        found = await_decision(folder, job, question=question, wait_s=arguments.wait)
        if found is not None:
            return found
        if arguments.fallback == "fail":
            raise
        return why


def _said(error: NccltError, tell: Callable[[str], None]) -> str:
    tell(f"ncclt: {error.message}{f' ({error.hint})' if error.hint else ''}")
    return error.message


def _content(texts: OfferTexts | None, plan: Plan, *, why: str) -> dict[str, object]:
    handover = plan(texts.offer() if texts else None, None)
    return {
        "why": why or ("" if handover.form else "; ".join(handover.notes)),
        "env": texts.env if texts else "",
        "table": texts.table if texts else "",
        "form": handover.form.value if handover.form else "",
        "effective": effective(handover, os.environ),
    }


def _followed(decision: JobAgreement, plan: Plan, tell: Callable[[str], None]) -> tuple[Offer | None, Handover]:
    offer, form, decided = _read(decision)
    mine = (decision.host, decision.pid) == (os.uname().nodename, os.getpid())
    if not mine:
        tell(f"ncclt: this job was decided on {decision.host} at {decision.when}")
        if time.time() - decision.created_s > _LONG_AGO_S:
            tell(f"ncclt: if that was an earlier job of the same name ({decision.job}), give each its own with --job")
    why = decision.content.get("why")  # not said by an older ncclt
    unset = f"nothing is set: the job was decided so{f' ({why})' if why else ''}"
    handover = plan(offer, form) if form else Handover(notes=(unset,))
    here = effective(handover, os.environ)
    different = sorted(name for name in {*decided, *here} if decided.get(name) != here.get(name))
    if different:
        listed = "; ".join(
            f"{name} would be {here.get(name, 'unset')} and is {decided.get(name, 'unset')} there" for name in different
        )
        raise UsageError(
            f"here something else would be in effect than {decision.host} decided for the job: {listed}",
            hint="ranks that disagree hang or corrupt data, so this process does not start; plugin, table folder and "
            "your own NCCL_* variables must be the same on all nodes",
        )
    return offer, handover


def _read(decision: JobAgreement) -> tuple[Offer | None, Form | None, dict[str, str]]:
    content = decision.content
    try:
        env, table = str(content["env"]), str(content["table"])
        form = Form(content["form"]) if content["form"] else None
        decided = {str(name): str(value) for name, value in content["effective"].items()}
        return OfferTexts(env=env, table=table).offer() if env else None, form, decided
    except (KeyError, TypeError, ValueError, AttributeError, InputError) as error:
        raise StoreError(
            f"what {decision.host} decided for this job cannot be followed: {error}",
            hint="use one version of ncclt on all nodes",
        ) from error
