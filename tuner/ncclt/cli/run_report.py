"""`ncclt run --report`: step times of a roll-out, and a report of the settings that took effect."""

from __future__ import annotations

import os
import socket
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ncclt.cli.exits import report
from ncclt.cli.render import say
from ncclt.core.attestation import Form
from ncclt.core.rollout import Variant
from ncclt.core.verification import mean_step_us
from ncclt.deliver.answer import Answer, AnswerSource, api_key, policy_from_answer, server_errors
from ncclt.deliver.job_plan import JobPlan
from ncclt.errors import InputError, NccltError, TraceError
from ncclt.launch.process.process_tree import MARK_VARIABLE, new_mark
from ncclt.launch.process.reaper import reaper
from ncclt.profile.record.command import run_foreground
from ncclt.profile.record.plan import FOLDERS, WINDOW_STEPS, Method, RecordOptions, plan_recording
from ncclt.profile.record.ranks import read_step_times
from ncclt.user_dirs import account_name

GRACE_S = 30.0
"""Time between SIGTERM and SIGKILL after ncclt was killed: Slurm's default (KillWait), to save a checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReport:
    """Report of one job.

    Attributes:
        folder: where its ranks report.
        source: returns the place that gets the report.
        job: its name in a roll-out, for which its step times are reported; empty = they are not.
    """

    folder: Path
    source: Callable[[], AnswerSource]
    job: str = ""


def run_and_attest(plan: JobPlan, job_report: JobReport) -> int:
    """Run the command and return its exit code, whether or not the attestation succeeds.

    Args:
        plan: of the start, with the final command and environment; without a form nothing is attested.

    Raises:
        UsageError: the command cannot be started.
    """
    assert plan.answer is not None
    assert plan.environ is not None
    with _ending_with_us(plan.environ) as marked:
        code = run_foreground(plan.argv, environ=marked)
    if job_report.job:
        with _failing_quietly(f"step time not reported; the recordings are in {job_report.folder}"):
            report_times(plan.answer, job_report)
    if plan.form is not None:
        with _failing_quietly(f"attestation skipped; the job's files are in {job_report.folder}: run `ncclt attest`"):
            _attest(plan.answer, plan.form, job_report)
    return code


@contextmanager
def _failing_quietly(loss: str) -> Iterator[None]:
    """Turn every failure inside into lines on stderr: the training's exit code must be kept."""
    try:
        yield
    except NccltError as error:
        report(error)
        say(f"ncclt: {loss}")
    except (Exception, KeyboardInterrupt):  # noqa: BLE001 -- see above
        traceback.print_exc()
        say(f"ncclt: {loss}")


@contextmanager
def _ending_with_us(environ: Mapping[str, str]) -> Iterator[Mapping[str, str]]:
    """Yield the environment with the mark by which the reaper finds the command, to end it if this process is killed.

    prctl's PR_SET_PDEATHSIG would signal the command alone, and leave the ranks of a torchrun.
    """
    mark = new_mark()
    outer = environ.get(MARK_VARIABLE)
    try:
        reaper().begin(mark, grace_s=GRACE_S, environment={})
    except Exception as error:  # noqa: BLE001 -- without a reaper the training still starts
        say(f"ncclt: the command will not end if ncclt is killed: {error}")
    try:
        yield {**environ, MARK_VARIABLE: f"{outer}/{mark}" if outer else mark}
    finally:
        reaper().end(mark)


def _attest(answer: Answer, form: Form, job_report: JobReport) -> None:
    from ncclt.cli.attest import find_delivered, keep_attestation, print_attestation, utc_now
    from ncclt.deliver.log_evidence import attest_files, job_files

    source, folder = job_report.source(), job_report.folder
    delivered = (
        policy_from_answer(answer, form) if answer.model else find_delivered(answer.recommendation, form, source)
    )
    if not folder.is_dir():
        raise TraceError(f"the folder of the reports is gone: {folder}", hint="does the job clean up there?")
    attestation = attest_files(job_files(folder), delivered, created=utc_now())
    print_attestation(attestation, to_stderr=True)
    keep_attestation(attestation, answer.ticket, source)
    say(f"ncclt: reports are in {folder}")


_FOLDER = "steps"

WARMUP_STEPS = 50
"""Steps before the window: more than in `ncclt verify`, since caches and file systems of a real job warm up longer."""


def timed_variables(folder: Path, command: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Write what the ranks need to take step times, and return the variables for it.

    Raises:
        UsageError: the folder's name cannot be carried by a variable.
        OSError: it cannot be written.
    """
    place = folder.absolute() / _FOLDER
    options = RecordOptions(method=Method.TORCH, warmup=WARMUP_STEPS, times_only=True)
    recording = plan_recording(command, options, folder=place, environ=environ)
    for name in FOLDERS:
        (place / name).mkdir(parents=True, exist_ok=True)
    for path, content in recording.files:
        (place / path).write_text(content, encoding="utf-8")
    return dict(recording.set_env)


def report_times(answer: Answer, job_report: JobReport) -> None:
    """Report the mean step time of the job to its server, else to the local store, and say what the guard says.

    Raises:
        InputError: the ranks recorded no step times.
        NotFoundError, StoreError, ServerError: it cannot be kept.
    """
    times = read_step_times(job_report.folder / _FOLDER, steps=WINDOW_STEPS)
    if times.failure:
        raise InputError(f"no step times: {times.failure}", hint="a training without a torch optimizer has none")
    step_us = mean_step_us(times.step_us)
    job_time: dict[str, Any] = {
        "rollout": answer.rollout,
        "job": job_report.job,
        "recommendation": "" if answer.variant == Variant.DEFAULT else answer.recommendation,
        "step_us": step_us,
        "steps": len(times.step_us),
    }
    source = job_report.source()
    if source.server:
        from ncclt.client.report import post_step_time

        key = api_key(os.environ)
        with server_errors():
            judged = post_step_time(
                source.server, job_time, timeout_s=source.timeout_s, api_key=key, ticket=answer.ticket
            )
        state, why = judged["state"], judged["reason"]
    else:
        from ncclt.core.rollout import JobTime
        from ncclt.prove.rollout import report_job_time
        from ncclt.store import open_store

        time = JobTime(**job_time, who=account_name(), address=socket.gethostname())
        with open_store(source.storage) as store:
            verdict = report_job_time(store, answer.ticket, time)
        state, why = verdict.state.value, verdict.reason
    say(f"ncclt: step time {step_us / 1e3:.2f} ms reported as {answer.variant}; roll-out {state}: {why}")
