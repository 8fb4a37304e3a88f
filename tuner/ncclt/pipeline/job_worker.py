"""A worker: takes tuning jobs of one cluster and runs each as `ncclt tune`, in a process of its own."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from ncclt.core.plural import count_noun
from ncclt.core.recommendation import Recommendation
from ncclt.core.study import Study
from ncclt.core.tuning_job import JobResult, JobState, TuningJob
from ncclt.errors import NccltError, NotFoundError, StoreError, StudyStoppedError, hide_passwords, reason
from ncclt.launch.process.followed import FollowedProcess
from ncclt.launch.slurm.job import ask
from ncclt.measure.target import Target
from ncclt.store.job_queue import JobQueue, prepare, serve_jobs, write_event
from ncclt.store.leases import SILENT_S, this_worker
from ncclt.store.store import Store

RENEW_S = 5.0
"""Interval of a worker's heartbeats, and of its search for dead workers."""

ALONE_S = SILENT_S - 15.0
"""A worker without contact to the store for this long ends its jobs: others are about to assume it dead."""

FINISH_S = 60.0
"""Grace period of a running trial between SIGTERM and SIGKILL; systemd gives a service 90 s."""

MOST_DEATHS = 5
"""Workers that may die while running a job before it fails: the job may be the cause."""

_TICK_S = 0.5
_LOOK_S = 2.0
_NODES_LOST = 75
_MOST_TRIES = 5
_LOST_PAUSE_S = 30.0
_PAGE = 100
_BATCH_END_S = 60.0


Answer = TypeVar("Answer")


class JobWorker:
    """Worker that takes jobs until `stop` is set, and then gives back unfinished ones.

    Args:
        cluster: name of the one whose jobs it takes.
        at_once: jobs of the cluster that may run at once, over all its workers.
        arguments: of `ncclt tune`, for every job: where and how trials run.
    """

    def __init__(
        self,
        store: Store,
        *,
        cluster: str,
        at_once: int = 1,
        arguments: tuple[str, ...] = (),
        say: Callable[[str], None],
    ) -> None:
        self._store, self._cluster, self._at_once, self._say = store, cluster, at_once, say
        self._arguments = arguments
        self.name = this_worker()
        self.stop = threading.Event()
        self.hurry = threading.Event()
        self._lost = threading.Event()
        self._running: list[FollowedProcess] = []
        self._busy = 0
        self._changed = threading.Condition()

    def serve(self) -> None:
        """Take jobs until `stop` is set.

        Raises:
            StoreError: the store cannot be used at the start, or this worker was assumed dead.
        """
        store, cluster = self._store, self._cluster
        prepare(store.url)
        with JobQueue(store.url) as queue:
            self._queue = queue
            store.jobs.enter_worker(self.name, cluster=cluster)
            queue.allow(cluster, at_once=self._at_once)
            take_no_more = serve_jobs(store.url, cluster, worker=self.name, run=self._run)
            self._say(f"ncclt: {self.name} takes jobs of {cluster}, {self._at_once} at once")
            heard_s = time.monotonic()
            while not self.stop.is_set() and not self._lost.is_set():
                try:
                    if not store.jobs.renew_worker(self.name):
                        self._lost.set()
                    heard_s = time.monotonic()
                    store.jobs.bury_workers(
                        cluster,
                        holders=lambda: queue.holders(cluster),
                        give_back=lambda worker: queue.give_back(worker, died=True),
                    )
                except StoreError as error:
                    self._say(f"ncclt: {error.message}")
                if time.monotonic() - heard_s > ALONE_S:
                    self._lost.set()
                self.stop.wait(RENEW_S)
            if self._lost.is_set():
                # Here, since the threads of the jobs may be waiting for the database.
                for process in tuple(self._running):
                    process.kill()
                raise StoreError(
                    f"{self.name} lost contact to the store for too long: other workers have taken its jobs",
                    hint="start it again",
                )
            with self._changed:
                while self._busy:
                    self._changed.wait()
            take_no_more()
            queue.give_back(self.name, died=False)
            store.jobs.leave_worker(self.name)

    def _run(self, job: TuningJob) -> JobResult:
        """Run one job; does not return once the worker stops, since then the job is given back."""
        with self._changed:
            self._busy += 1
        try:
            result = None if self._ends() else self._result_of(job)
        except NccltError as error:
            why = error.message
            self._patiently(lambda: self._store.jobs.note_failed(job, why))
            raise
        finally:
            with self._changed:
                self._busy -= 1
                self._changed.notify_all()
        while result is None:
            threading.Event().wait()
        return result

    def _ends(self) -> bool:
        return self.stop.is_set() or self._lost.is_set()

    def _patiently(self, ask: Callable[[], Answer]) -> Answer | None:
        """Ask a database until it answers; None = this worker ends."""
        while not self._ends():
            try:
                return ask()
            except StoreError:
                self.stop.wait(_LOOK_S)
        return None

    def _result_of(self, job: TuningJob) -> JobResult | None:
        if not self._patiently(lambda: self._store.jobs.renew_worker(self.name)):
            return None  # buried by mistake: the job is given back by others
        if (status := self._patiently(lambda: self._queue.status(job.id))) is None:
            return None
        if status.cancelling or status.state.ended:
            return self._ended(job, JobState.CANCELLED, "cancelled before it was launched")
        if status.taken_over >= MOST_DEATHS:
            return self._ended(job, JobState.FAILED, f"{count_noun(status.taken_over, 'worker')} died while running it")
        self._say(f"ncclt: job {job.id}: {job.model} on {job.cluster}, study {job.study}")
        write_event("started", worker=self.name, study=job.study, taken_over=status.taken_over)
        for _ in range(_MOST_TRIES):
            exit_code, error, cancelled = self._tune(job)
            if self._lost.is_set():
                return None
            if self.stop.is_set():
                write_event("given-back", worker=self.name)
                return None
            if cancelled:
                return self._ended(job, JobState.CANCELLED, "cancelled while it ran; its trials are kept")
            if exit_code != _NODES_LOST:
                break
            self.stop.wait(_LOST_PAUSE_S)
        if exit_code == 0:
            return self._ended(job, JobState.DONE, "")
        return self._ended(job, JobState.FAILED, error or f"`ncclt tune` ended with exit code {exit_code}")

    def _tune(self, job: TuningJob) -> tuple[int, str, bool]:
        """Run `ncclt tune` once; return its exit code, its last words, and whether it was cancelled."""
        extra, in_batches = self._arguments, submits_batches(self._arguments)
        if in_batches:
            end_batches(job.id)  # of a worker that died
            extra = (*extra, f"--launcher-option=sbatch-arg=--job-name={_batch_name(job.id)}")
        argv = (sys.executable, "-m", "ncclt", "tune", *job.arguments(), *extra)
        environment = {**os.environ, "NCCLT_STORAGE": self._store.url, "PYTHONUNBUFFERED": "1"}
        error, cancelled, asked_s, last_trial = "", False, None, -1
        with FollowedProcess(argv, environment=environment) as process, self._registered(process):
            while (exit_code := process.wait(_TICK_S)) is None:
                for line in process.lines():
                    error = self._pass_on(line, error)
                last_trial = self._pass_on_trials(job, last_trial)
                if self.hurry.is_set():
                    process.kill()
                with contextlib.suppress(StoreError):
                    status = self._queue.status(job.id)
                    cancelled = cancelled or status.cancelling or status.state is JobState.CANCELLED
                overdue = asked_s is None or time.monotonic() - asked_s > FINISH_S
                if overdue and (cancelled or self.stop.is_set()):
                    process.signal(signal.SIGTERM)
                    asked_s = asked_s or time.monotonic()
            for line in process.lines():
                error = self._pass_on(line, error)
        self._pass_on_trials(job, last_trial)
        if in_batches and (cancelled or self.stop.is_set()):
            end_batches(job.id)
        return exit_code, error, cancelled

    @contextlib.contextmanager
    def _registered(self, process: FollowedProcess) -> Iterator[None]:
        self._running.append(process)
        try:
            yield
        finally:
            self._running.remove(process)

    def _pass_on(self, line: str, error: str) -> str:
        """Write a line of output as an event; return the last error that was said."""
        line = hide_passwords(line)
        if line.strip():
            write_event("log", line=line)
        if line.startswith("ncclt: "):
            return line.removeprefix("ncclt: ")
        return f"{error} ({line.strip()})" if line.startswith("  hint: ") else error

    def _pass_on_trials(self, job: TuningJob, last_trial: int) -> int:
        """Write the newest trials of the study as an event; return the number of the last one."""
        with contextlib.suppress(NotFoundError, StoreError):
            study = self._store.studies.get(job.study)
            while page := self._store.trials.page(study.id, after=last_trial, limit=_PAGE):
                last, last_trial = page[-1], page[-1].number
                write_event(
                    "trials",
                    study=study.id,
                    count=last_trial + 1,
                    phase=last.phase.value,
                    setting=last.label,
                    outcome=last.result.outcome.value,
                    score_us=last.score_us,
                )
        return last_trial

    def _ended(self, job: TuningJob, state: JobState, why: str) -> JobResult | None:
        if (outcome := self._patiently(lambda: self._found(job))) is None:
            return None
        study, trials, published = outcome
        ended = study.reason if study else ""
        if published is not None:
            ended = published.table.verdict.reason
            place = self._patiently(lambda: self._store.revisions.publication(published.id))
            if place:
                ended = f"{ended}. {place}"
        result = JobResult(
            state=state,
            reason=why or ended,
            study=study.id if study else "",
            trials=trials,
            recommendation=published.id if published else "",
            decision=published.table.verdict.decision.value if published else "",
            simulated=bool(study and study.simulated),
            recorded="" if not study or study.simulated else study.label,
        )
        if state is JobState.FAILED:
            self._patiently(lambda: self._store.jobs.note_failed(job, result.reason))
        write_event("ended", **result.to_document())
        self._say(f"ncclt: job {job.id}: {state}{f': {why}' if why else ''}")
        return result

    def _found(self, job: TuningJob) -> tuple[Study | None, int, Recommendation | None]:
        try:
            study = self._store.studies.get(job.study)
        except NotFoundError:
            return None, 0, None
        published = self._store.recommendations.find(study=study.id)
        return study, len(self._store.trials.outline(study.id)), published[0] if published else None


def submits_batches(arguments: Sequence[str]) -> bool:
    """Return True if `ncclt tune` with these arguments submits each study as a batch job of Slurm."""
    named = re.search(r"--launcher[ =](\S+)", " ".join(arguments))
    target = Target(launcher=named[1] if named else os.environ.get("NCCLT_LAUNCHER", ""))
    return target.lacks_allocation(os.environ)


def _batch_name(id: str) -> str:
    return f"ncclt-job-{id}"


def end_batches(id: str) -> None:
    """Cancel the batch jobs of a tuning job and wait until Slurm has ended them.

    Raises:
        StudyStoppedError: Slurm does not end them.
    """
    name, deadline_s = _batch_name(id), time.monotonic() + _BATCH_END_S
    while batches := _slurm("squeue", "--noheader", "--me", f"--name={name}", "--format=%i").split():
        _slurm("scancel", "--me", f"--name={name}")
        if time.monotonic() > deadline_s:
            raise StudyStoppedError(f"Slurm does not cancel batch job {batches[0]} of an earlier worker")
        time.sleep(_TICK_S)


def _slurm(*argv: str) -> str:
    try:
        done = ask(argv, None)
    except OSError as error:
        raise StudyStoppedError(f"cannot run {argv[0]}: {reason(error)}") from error
    if done.returncode:
        raise StudyStoppedError(f"{argv[0]}: {done.stderr.strip()[:200]}")
    return done.stdout
