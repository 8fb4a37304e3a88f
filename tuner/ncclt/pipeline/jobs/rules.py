"""Rules by which workloads are tuned again: the workers of a cluster look at them."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

from ncclt.core.tuning_job import JobRule
from ncclt.errors import NccltError, NotFoundError
from ncclt.store import open_store
from ncclt.store.store import Store, utc_now
from ncclt_api.job_queue import JobQueue, prepare, queue_file


def apply_rules(store: Store, queue: JobQueue, cluster: str, *, say: Callable[[str], None], now: str = "") -> None:
    """Queue what the rules of a cluster ask for now.

    The id of a job is a function of the rule and its reason, so each occasion queues one job, however many workers
    look, and however often.

    Args:
        store, queue: of the jobs.
        cluster: name.
        say: receives what was queued, and why a rule cannot be followed.
        now: ISO time; empty = the machine's clock.

    Raises:
        StoreError: store or queue cannot be used.
    """
    for rule in store.job_rules(cluster=cluster):
        try:
            why = reason_for(rule, store, now=now or utc_now())
            if not why:
                continue
            id = hashlib.sha256(f"{rule.id}\n{why}".encode()).hexdigest()[:16]
            try:
                queue.status(id)
            except NotFoundError:
                asked = replace(rule.job, id=id, created=now or utc_now(), by=f"rule {rule.id}")
                queue.submit(store.checked_job(asked, again=True))
                say(f"ncclt: rule {rule.id} queued job {id}: {why}")
        except NccltError as error:
            say(f"ncclt: the rule {rule.id} cannot be followed: {error.message}")


def reason_for(rule: JobRule, store: Store, *, now: str) -> str:
    """Return why a rule asks for a job now, a text of its own for each occasion; empty = it does not.

    Where nothing was published yet there is nothing to renew: the first job is a user's.

    Raises:
        NotFoundError: the cluster is not known any more.
        UsageError: it no longer has the rule's shape.
    """
    job = rule.job
    fingerprint = (
        store.cluster(job.cluster)
        .sized(nodes=job.nodes, gpus_per_node=job.gpus_per_node, nccl_version=job.nccl_version)
        .fingerprint()
    )
    published = store.newest(cluster=job.cluster, model=job.model)
    if not published:
        return ""
    fitting = [one for one in published if one.fingerprint == fingerprint]
    if not fitting:
        return f"the fingerprint is {fingerprint.digest()} now" if rule.fingerprint_changed else ""
    newest = fitting[0]
    if rule.stale and newest.stale:
        return f"{newest.id} is stale"
    age = datetime.fromisoformat(now) - _aware(newest.created)
    if rule.every_days and age.days < -1:  # beyond what clocks and time zones differ by: its age is not known
        return f"{newest.id} was made in the future, at {newest.created}"
    if rule.every_days and age.days >= rule.every_days:
        # Counted, so that a job that ends without a recommendation is followed by the next one in time.
        return f"{newest.id} is {age.days // rule.every_days} times {rule.every_days} days old"
    return ""


def _aware(time: str) -> datetime:
    found = datetime.fromisoformat(time)
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def prune_jobs(storage: str, *, before: str, dry_run: bool) -> int:
    """Remove the jobs that ended before a time, and return how many they are.

    The newest job of each rule stays: without it the rule would ask again for the same occasion.

    Args:
        storage: URL of the store, of this version of ncclt.
        before: ISO time in UTC.
        dry_run: only count.

    Raises:
        StoreError: store or queue cannot be used.
    """
    if (file := queue_file(storage)) is not None and not file.exists():
        return 0
    with open_store(storage, migrate=False) as store:
        rules = {f"rule {rule.id}" for rule in store.job_rules()}
    prepare(storage)
    found = []
    with JobQueue(storage) as queue:
        for status in queue.statuses(limit=sys.maxsize):
            if status.job.by in rules:
                rules.remove(status.job.by)
            elif status.state.ended and "" < (status.ended or status.job.created) < before:
                found.append(status.job.id)
        if found and not dry_run:
            queue.remove(found)
    return len(found)
