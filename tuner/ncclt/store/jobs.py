"""Tuning jobs: their check before they are queued, and the workers that take them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from sqlalchemy import delete, exists, insert, select, update

from ncclt.core.revision import Action, shorten_reason
from ncclt.core.tuning_job import TuningJob
from ncclt.store.catalogue import Clusters, Workloads
from ncclt.store.database import now_s
from ncclt.store.failures import repeatable
from ncclt.store.leases import is_dead
from ncclt.store.part import StorePart, unscoped
from ncclt.store.tables import history, job_workers
from ncclt.user_dirs import recorded_tables

SETTLE_S = 5.0
"""Min rest of the jobs of a dead worker: its reaper ends the launches meanwhile."""


class Jobs(StorePart):
    """The tuning jobs and their workers; the queue itself is `ncclt.store.job_queue`."""

    def check(self, job: TuningJob, *, again: bool = False) -> TuningJob:
        """Return a job with the name of its study; refuse now what `ncclt tune` of a worker would refuse.

        Args:
            job: with the names of a cluster and a workload.
            again: measure again although the same was tuned before.

        Raises:
            NotFoundError: a name is unknown.
            UsageError: the workload does not fit the shape, or the cluster was recorded with another one.
        """
        parts = (self._database, self._shipped, self._clock, self._scope)
        cluster = Clusters(*parts).get(job.cluster)
        if cluster.name in recorded_tables():
            cluster.as_recorded(nodes=job.nodes, gpus_per_node=job.gpus_per_node, nccl_version=job.nccl_version)
        return job.on(cluster, Workloads(*parts).get(job.model), again=again)

    @unscoped
    @repeatable
    def enter_worker(self, worker: str, *, cluster: str) -> None:
        """Register a worker of a cluster; one that is registered stays so."""
        with self._database.alone() as connection:
            if connection.execute(select(job_workers.c.name).where(job_workers.c.name == worker)).first() is None:
                row = {"name": worker, "cluster": cluster, "renewed_s": now_s(connection)}
                connection.execute(insert(job_workers).values(**row))

    @unscoped
    @repeatable
    def renew_worker(self, worker: str) -> bool:
        """Say that a worker lives; False = it was assumed dead, and its jobs are others' now."""
        with self._database.alone() as connection:
            renewal = update(job_workers).where(job_workers.c.name == worker)
            return bool(connection.execute(renewal.values(renewed_s=now_s(connection))).rowcount)

    @unscoped
    @repeatable
    def leave_worker(self, worker: str) -> None:
        """Forget a worker that has given its jobs back."""
        with self._database.alone() as connection:
            connection.execute(delete(job_workers).where(job_workers.c.name == worker))

    @unscoped
    @repeatable
    def bury_workers(
        self,
        cluster: str,
        *,
        holders: Callable[[], Iterable[str]],
        give_back: Callable[[str], None],
        settle_s: float = SETTLE_S,
    ) -> None:
        """Give back the jobs of each worker of a cluster that is dead or not registered, and forget it.

        No other process writes to the store meanwhile, so each worker is buried by one. If that one dies before it
        has finished, the next one does it again, and finds what is still the dead worker's.

        Args:
            holders: returns the workers that hold jobs of the cluster. One of them may have been buried by mistake
                and have taken a job before it noticed.
            give_back: returns the jobs of a worker to the queue; may be called again for the same worker.
            settle_s: without a renewal for less than this, a worker that has died is left alone.
        """
        with self._database.alone() as connection:
            now = now_s(connection)
            rows = connection.execute(select(job_workers)).all()
            dead = [
                row.name
                for row in rows
                if row.cluster == cluster
                and abs(now - row.renewed_s) >= settle_s  # the clock may have been set back
                and is_dead(row.name, row.renewed_s, now)
            ]
            registered = {row.name for row in rows}
            for name in (*dead, *(name for name in holders() if name not in registered)):
                give_back(name)
                connection.execute(delete(job_workers).where(job_workers.c.name == name))

    @repeatable
    def workers(self, cluster: str) -> tuple[str, ...]:
        """Return the workers of a cluster that live, by name."""
        if not self._is_visible(cluster):
            return ()
        with self._database.reading() as connection:
            now = now_s(connection)
            rows = connection.execute(select(job_workers).where(job_workers.c.cluster == cluster)).all()
        return tuple(sorted(row.name for row in rows if not is_dead(row.name, row.renewed_s, now)))

    @unscoped
    @repeatable
    def note_failed(self, job: TuningJob, why: str) -> None:
        """Note in the history that a job failed, once: a worker may die between this note and that of the queue."""
        with self._database.alone() as connection:
            entry = {
                "cluster": job.cluster,
                "model": job.model,
                "recommendation": "",
                "action": Action.JOB_FAILED.value,
                "who": f"worker of {job.cluster}",
                "why": shorten_reason(f"job {job.id}: {why}"),
            }
            is_noted = exists().where(*(history.c[name] == value for name, value in entry.items()))
            if not connection.scalar(select(is_noted)):
                connection.execute(insert(history).values(**entry, created=self._clock()))
