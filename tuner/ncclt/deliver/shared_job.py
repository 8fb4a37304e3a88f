"""`ncclt run --shared`: the first process of a job decides for all of them, and this process follows."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from ncclt.core.attestation import Form
from ncclt.deliver.answer import Answer, answer_from_json
from ncclt.deliver.job_info import JobInfo, read_participant
from ncclt.deliver.job_plan import JobPlan, effective_variables
from ncclt.deliver.shared_decision import (
    SharedDecision,
    await_decision,
    await_participants,
    check_shared_folder,
    decide,
    find_decision,
)
from ncclt.errors import InputError, NccltError, NotFoundError, StoreError, UsageError, as_ncclt_error

_LONG_AGO_S = 86400.0
"""A decision older than this is probably of an earlier job with the same name; a note says so."""

Planner = Callable[[Answer, Form | None], JobPlan]
"""Plans the delivery of an answer on this node, in the given form, else in the best one."""


def require_name(job: JobInfo) -> None:
    """Raise unless it is known which job the processes that must agree belong to.

    Raises:
        UsageError: it is not.
    """
    if not job.name:
        raise UsageError(
            "this command starts several times for one job, and the job has no name",
            hint="give it a name that is equal on all nodes and new for every start: --job NAME, NCCLT_JOB, or "
            "--rdzv-id",
        )


def agree(
    arguments: argparse.Namespace,
    folder: Path,
    job: JobInfo,
    *,
    question: str,
    ask: Callable[[], Answer],
    plan: Planner,
    tell: Callable[[str], None],
) -> JobPlan:
    """Plan the start of this process: it follows the job's decision, and decides itself if no process has.

    Something is given only where every node, or every rank of MPI, was seen in this folder before.

    Args:
        folder: shared by the job's nodes.
        question: what is requested, equal on all nodes.
        ask: fetches the answer, if nothing is decided yet.
        plan: turns an answer into what this process sets.
        tell: receives a line for the user, at once.

    Raises:
        StoreError: the decision cannot be read: the job must not start here.
        UsageError: the settings of this process would differ from the decision.
        NccltError: with --fallback fail, why there is no answer.
    """
    require_name(job)
    folder = check_shared_folder(folder)
    me = read_participant(job)
    decision, reported = find_decision(folder, job, question=question), ""
    if not arguments.dry_run and decision is None:
        await_participants(folder, job, name=me.name, count=me.count, wait_s=0)
    if decision is None:
        asked = _ask(arguments, folder, job, question, ask, tell)
        if isinstance(asked, SharedDecision):
            decision = asked
        else:
            answer, why = (None, asked) if isinstance(asked, str) else (asked, "")
            reported = why
            planned = plan(answer, None) if answer else JobPlan(notes=("Nothing set",))
            if arguments.dry_run:
                tell("ncclt: no decision for this job yet; this is the proposal")
                return replace(planned, is_common=True)
            if planned.form is not None and answer is not None:
                count = me.count if me.is_rank else max(me.count, answer.nodes)
                participants = await_participants(folder, job, name=me.name, count=count, wait_s=arguments.wait)
                if participants < count:
                    answer, planned = None, JobPlan()
                    why = (
                        f"only {participants} of {count} {'ranks' if me.is_rank else 'nodes'} were seen in {folder} "
                        f"within {arguments.wait:g} s: is it the same folder everywhere, and does every node run this?"
                    )
            content = {
                "why": why or ("" if planned.form else "; ".join(planned.notes)),
                "env": json.dumps(answer.document, indent=2) + "\n" if answer else "",
                "form": planned.form.value if planned.form else "",
                "effective": effective_variables(planned, job),
            }
            decision = decide(folder, job, question=question, content=content)
    return _follow(decision, job, plan, tell, reported=reported)


def _ask(
    arguments: argparse.Namespace,
    folder: Path,
    job: JobInfo,
    question: str,
    ask: Callable[[], Answer],
    tell: Callable[[str], None],
) -> Answer | SharedDecision | str:
    """Return an answer; if this node gets none, what others decided meanwhile; else why there is none."""
    try:
        return ask()
    except NotFoundError as error:
        if arguments.fallback == "fail":
            raise
        return _explain(error, tell)
    except Exception as error:
        # Another node may reach the server: the first with an answer decides.
        why = _explain(as_ncclt_error(error), tell)
        decision = await_decision(folder, job, question=question, wait_s=arguments.wait)
        if decision is not None:
            return decision
        if arguments.fallback == "fail":
            raise
        return why


def _explain(error: NccltError, tell: Callable[[str], None]) -> str:
    tell(f"ncclt: {error.message}{f' ({error.hint})' if error.hint else ''}")
    return error.message


def _follow(
    decision: SharedDecision, job: JobInfo, plan: Planner, tell: Callable[[str], None], *, reported: str
) -> JobPlan:
    answer, form, decided = _read(decision)
    if (decision.host, decision.pid) != (os.uname().nodename, os.getpid()):
        tell(f"ncclt: following the decision of {decision.host} at {decision.when}")
        if time.time() - decision.created_s > _LONG_AGO_S:
            tell(f"ncclt: if that was an earlier job of this name ({decision.job}), give each a unique --job")
    why = decision.content["why"]
    unset = f"Nothing set: decided so for this job{f' ({why})' if why and why != reported else ''}"
    planned = plan(answer, form) if answer and form else JobPlan(answer=answer, notes=(unset,))
    effective = effective_variables(planned, job)
    different = sorted(name for name in {*decided, *effective} if decided.get(name) != effective.get(name))
    if different:
        listed = "; ".join(
            f"{name} is {effective.get(name, 'unset')} here, {decided.get(name, 'unset')} there" for name in different
        )
        raise UsageError(
            f"this process differs from the decision of {decision.host}: {listed}",
            hint="ranks that disagree hang or corrupt data, so this process does not start; plugin, table folder and "
            "your own NCCL_* variables must be the same on all nodes",
        )
    return replace(planned, is_common=True)


def _read(decision: SharedDecision) -> tuple[Answer | None, Form | None, Mapping[str, str]]:
    content = decision.content
    try:
        env = str(content["env"])
        form = Form(content["form"]) if content["form"] else None
        decided = {str(name): str(value) for name, value in content["effective"].items()}
        return answer_from_json(env) if env else None, form, decided
    except (KeyError, TypeError, ValueError, AttributeError, InputError) as error:
        raise StoreError(
            f"cannot read the decision of {decision.host} for this job: {error}",
            hint="use one version of ncclt on all nodes",
        ) from error
