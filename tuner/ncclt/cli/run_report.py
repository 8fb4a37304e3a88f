"""`ncclt run --report` after the start: wait for the command, then report whether its settings took effect."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from ncclt.cli.output import report, say
from ncclt.core.attestation import Form
from ncclt.deliver.answer import Answer, policy_from_answer
from ncclt.errors import NccltError, TraceError
from ncclt.launch.process.process_tree import MARK_VARIABLE, new_mark
from ncclt.launch.process.reaper import reaper
from ncclt.profile.record.command import run_foreground

GRACE_S = 30.0
"""Between SIGTERM and SIGKILL after ncclt was killed: Slurm's default (KillWait), time to save a checkpoint."""


def run_and_attest(
    command: Sequence[str],
    environ: Mapping[str, str],
    answer: Answer,
    form: Form | None,
    *,
    folder: Path,
    where: Callable[[], tuple[str | None, str | None]],
    timeout_s: float,
    job: str = "",
) -> int:
    """Run the command and return its exit code, whether or not the attestation succeeds.

    Args:
        command, environ: what to run.
        answer, form: what it was given; without a form nothing is attested.
        folder: where it reports.
        where: returns server and store.
        timeout_s: for each request to the server afterwards.
        job: its name in a roll-out, for which its step times are reported; empty = they are not.

    Raises:
        UsageError: the command cannot be started.
    """
    with _ending_with_us(environ) as marked:
        code = run_foreground(command, environ=marked)
    if job:
        with _kept_quiet(f"step time not reported; the recordings are in {folder}"):
            from ncclt.cli.run_times import report_times

            report_times(answer, job, folder=folder, where=where, timeout_s=timeout_s)
    if form is not None:
        with _kept_quiet(f"attestation skipped; the job's files are in {folder}: run `ncclt attest`"):
            _attest(answer, form, folder=folder, where=where, timeout_s=timeout_s)
    return code


@contextmanager
def _kept_quiet(lacking: str) -> Iterator[None]:
    """Turn every failure inside into lines on stderr: the training's exit code must be kept."""
    try:
        yield
    except NccltError as error:
        report(error)
        say(f"ncclt: {lacking}")
    except (Exception, KeyboardInterrupt):  # noqa: BLE001 -- see above
        traceback.print_exc()
        say(f"ncclt: {lacking}")


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


def _attest(
    answer: Answer,
    form: Form,
    *,
    folder: Path,
    where: Callable[[], tuple[str | None, str | None]],
    timeout_s: float,
) -> None:
    from ncclt.cli.attest import find_delivered, keep, print_attestation
    from ncclt.deliver.log_evidence import attest_files, job_files

    server, storage = where()
    delivered = (
        policy_from_answer(answer, form)
        if answer.model
        else find_delivered(answer.recommendation, form, server=server, storage=storage, timeout_s=timeout_s)
    )
    if not folder.is_dir():
        raise TraceError(f"the folder of the reports is gone: {folder}", hint="does the job clean up there?")
    attestation = attest_files(
        job_files(folder), delivered, created=datetime.now(UTC).isoformat(timespec="milliseconds")
    )
    print_attestation(attestation, to_stderr=True)
    keep(attestation, answer.ticket, server=server, storage=storage, timeout_s=timeout_s)
    say(f"ncclt: reports are in {folder}")
