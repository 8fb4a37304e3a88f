"""Tuning jobs of a service, over HTTP: for a machine that sees neither its database nor its queue."""

from __future__ import annotations

import json
import os
import time
import urllib.request
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

from ncclt.client.fetch import ClientError, base_of, get, host_of
from ncclt.client.report import posting
from ncclt.core.documents import Documented
from ncclt.core.tuning_job import JobEvent, JobResult, JobState, JobStatus, StaleJob, TuningJob
from ncclt.deliver.answer import api_key
from ncclt.errors import ConflictError, NccltError, NotFoundError, ServerError, UsageError

Record = TypeVar("Record", bound=Documented)

_TIMEOUT_S = 30.0
_PAGE = 200
"""Jobs that the service lists at once, at most."""

_SET_BY_SERVICE = ("id", "study", "created", "by")
"""Fields of a job that the service sets."""

_LIMITS = ("trials", "seconds", "gpu_hours", "blocks", "seed", "prove_variables", "priority")

_OTHER = "check that client and service have the same ncclt version"

_PAUSES_S = (1.0, 4.0)
"""Pauses between the attempts of a request that is safe to repeat."""


class RemoteJobs:
    """The jobs of a service; the key is that of NCCLT_API_KEY or NCCLT_API_KEY_FILE.

    Every method raises ServerError if the service cannot be reached, is broken, or does not take the key.
    """

    def __init__(self, server: str) -> None:
        self._server = server
        self._key = api_key(os.environ)

    def submit(self, job: TuningJob, *, again: bool) -> JobStatus:
        """Queue a job, once: a request that got no answer is sent again with the same Idempotency-Key.

        Raises:
            NotFoundError: the service does not know cluster or workload.
            UsageError: it refuses the job.
        """
        asked = {field.name: getattr(job, field.name) for field in fields(job) if field.name not in _SET_BY_SERVICE}
        request = posting(self._url("/v1/jobs"), {**asked, "again": again})
        request.add_header("Idempotency-Key", uuid.uuid4().hex)
        return _status(self._ask(request, pauses_s=_PAUSES_S))

    def submit_stale(self, limits: TuningJob, *, cluster: str | None) -> tuple[StaleJob, ...]:
        """Queue a job for each stale recommendation that has none queued or running.

        Args:
            cluster: only its recommendations; None = all.

        Raises:
            NotFoundError: the service does not know the cluster.
            UsageError: it refuses the limits.
        """
        asked = {"cluster": cluster, **{name: getattr(limits, name) for name in _LIMITS}}
        answer = self._ask(posting(self._url("/v1/jobs/stale"), asked), pauses_s=_PAUSES_S)
        try:
            return tuple(_read(StaleJob, {**item, "status": _join_status(item["job"])}) for item in answer["items"])
        except (LookupError, TypeError) as error:
            raise ServerError(f"unexpected answer of the service: {error}", hint=_OTHER) from error

    def statuses(self, *, cluster: str | None, state: JobState | None, limit: int) -> tuple[JobStatus, ...]:
        """Return jobs, newest first; of one cluster or state, or all."""
        statuses: list[JobStatus] = []
        cursor: str | None = None
        while len(statuses) < limit:
            page = min(limit - len(statuses), _PAGE)
            asked = {"cluster": cluster, "state": state and state.value, "limit": page, "cursor": cursor}
            query = urlencode({name: value for name, value in asked.items() if value is not None})
            answer = self._ask(self._url(f"/v1/jobs?{query}"))
            statuses += [_status(item) for item in answer["items"]]
            cursor = answer["next_cursor"]
            if cursor is None:
                break
        return tuple(statuses)

    def status(self, id: str) -> JobStatus:
        """Return a job with its state; NotFoundError if there is none of this id."""
        return _status(self._ask(self._job(id)))

    def cancel(self, id: str) -> JobStatus:
        """Cancel a job, as of `JobQueue`; NotFoundError if there is none of this id."""
        return _status(self._ask(posting(self._job(id, "/cancel"), {})))

    def retry(self, id: str) -> JobStatus:
        """Queue a job that has ended once more.

        Raises:
            NotFoundError: there is no such job.
            ConflictError: it has not ended.
        """
        return _status(self._ask(posting(self._job(id, "/retry"), {})))

    def written(self, id: str, *, first: int = 0) -> Iterator[JobEvent]:
        """Yield the events of a job that are written, from a number on; NotFoundError if there is no such job."""
        number = first
        while True:
            request = urllib.request.Request(self._job(id, "/events?follow=false"))  # noqa: S310 -- base_of
            if number:
                request.add_header("Last-Event-ID", str(number - 1))
            before = number
            for event in _events(self._text(request)):
                yield event
                number = event.number + 1
            if number == before:
                return

    def _job(self, id: str, path: str = "") -> str:
        return self._url(f"/v1/jobs/{quote(id, safe='')}{path}")

    def _url(self, path: str) -> str:
        try:
            return base_of(self._server) + path
        except ClientError as error:
            raise UsageError(error.message, hint=error.hint) from error

    def _ask(self, asked: str | urllib.request.Request, *, pauses_s: tuple[float, ...] = ()) -> Any:
        try:
            return json.loads(self._text(asked, pauses_s=pauses_s))
        except ValueError as error:
            raise ServerError(f"{host_of(self._server)} did not answer as ncclt does: {error}") from error

    def _text(self, asked: str | urllib.request.Request, *, pauses_s: tuple[float, ...] = ()) -> str:
        pauses = iter(pauses_s)
        while True:
            try:
                return get(asked, None, api_key=self._key, timeout_s=_TIMEOUT_S).text
            except ClientError as error:
                pause_s = next(pauses, None)
                if pause_s is None or not error.is_outage:
                    kinds: dict[int, type[NccltError]] = {404: NotFoundError, 409: ConflictError, 422: UsageError}
                    raise kinds.get(error.status or 0, ServerError)(error.message, hint=error.hint) from error
                time.sleep(pause_s)


def _join_status(document: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the document of a `JobStatus` from the answer of the service, where the job's fields stand beside it."""
    if document is None:
        return None
    result = document["result"] and {"schema": JobResult.SHAPE.schema, **document["result"]}
    return {**document, "job": {"schema": TuningJob.SHAPE.schema, **document}, "result": result}


def _status(document: Mapping[str, Any]) -> JobStatus:
    """Return a job from the JSON of the service; ServerError if it is none."""
    try:
        return _read(JobStatus, _join_status(document))
    except (LookupError, TypeError) as error:
        raise ServerError(f"the answer of the service is no job: {error}", hint=_OTHER) from error


def _read(kind: type[Record], document: Any) -> Record:
    try:
        return kind.from_document(document)
    except NccltError as error:
        raise ServerError(f"unexpected answer of the service: {error.message}", hint=_OTHER) from error


def _events(text: str) -> Iterator[JobEvent]:
    """Yield the numbered events of a text of server-sent events.

    Raises:
        ServerError: it is not one.
    """
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n") if ": " in line)
        if "id" in fields:
            try:
                yield JobEvent(number=int(fields["id"]), kind=fields["event"], data=dict(json.loads(fields["data"])))
            except (LookupError, TypeError, ValueError) as error:
                raise ServerError(f"the answer of the service is no event: {error}") from error
