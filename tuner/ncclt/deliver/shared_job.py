"""`ncclt run --shared`: the first process of a job decides for all of them, and this process follows."""

from __future__ import annotations

import argparse
import json
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
from ncclt.deliver.handover import Handover, effective
from ncclt.deliver.job import Job, is_alone, job_of
from ncclt.deliver.offer import Offer, offer_from_json, with_table_text
from ncclt.errors import InputError, NccltError, NotFoundError, StoreError, UsageError, described

_LONG_AGO_S = 86400.0
"""A decision older than this is probably of an earlier job with the same name; a note says so."""

Plan = Callable[[Offer | None, Form | None], Handover]
"""Return what an offer sets on this node, in the given form, else in the best one."""


def deciding_job(arguments: argparse.Namespace, command: Sequence[str], environ: Mapping[str, str]) -> Job | None:
    """Return the job whose processes must agree; None if this process is the only one.

    Raises:
        UsageError: there are several such processes, and their job is not known.
    """
    # An empty name is not the same as no name: in a pod it comes from a missing label.
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
    ask: Callable[[], Offer],
    plan: Plan,
    tell: Callable[[str], None],
) -> tuple[Offer | None, Handover]:
    """Return what the job was given, deciding it if no process has, and what this process sets for it.

    Args:
        arguments: with nodes, dry_run, fallback and wait.
        folder: shared by the job's nodes.
        job: whose processes agree.
        question: what is requested, equal on all nodes.
        ask: fetches the offer, if nothing is decided yet.
        plan: turns an offer into what this process sets.
        tell: receives a line for the user, at once.

    Raises:
        StoreError: the decision cannot be read: the job must not start here.
        UsageError: the settings of this process would differ from the decision.
        NccltError: with --fallback fail, why there is no offer.
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
        if isinstance(answer, JobAgreement):
            found = answer
        else:
            offer, why = (None, answer) if isinstance(answer, str) else (answer, "")
            handover = plan(offer, None)
            if arguments.dry_run:
                tell("ncclt: no node has decided for this job yet; this would be proposed")
                return offer, handover
            found = decide(folder, job, question=question, content=_content(offer, handover, why=why))
    return _followed(found, plan, tell)


def _asked(
    arguments: argparse.Namespace,
    folder: Path,
    job: Job,
    question: str,
    ask: Callable[[], Offer],
    tell: Callable[[str], None],
) -> Offer | JobAgreement | str:
    """Return an offer; if this node gets none, what others decided meanwhile; else why there is none."""
    try:
        return ask()
    except NotFoundError as error:
        if arguments.fallback == "fail":
            raise
        return _said(error, tell)
    except Exception as error:
        # Another node may reach the server: the first with an answer decides.
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


def _content(offer: Offer | None, handover: Handover, *, why: str) -> dict[str, object]:
    return {
        "why": why or ("" if handover.form else "; ".join(handover.notes)),
        "env": json.dumps(offer.document, indent=2) + "\n" if offer else "",
        "table": offer.table if offer else "",
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
    why = decision.content["why"]
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
        offer = offer_from_json(env) if env else None
        return with_table_text(offer, table) if offer and table else offer, form, decided
    except (KeyError, TypeError, ValueError, AttributeError, InputError) as error:
        raise StoreError(
            f"what {decision.host} decided for this job cannot be followed: {error}",
            hint="use one version of ncclt on all nodes",
        ) from error
