"""Telemetry of the service: one log line per request, and metrics for Prometheus.

Neither holds a query, a header or a body: keys and passwords cannot appear in them.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING, Any

import structlog
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ncclt.core.tuning_job import JobState
from ncclt.errors import NccltError, hide_passwords
from ncclt.store.store import Store
from ncclt_api.middleware import for_requests, request_id

if TYPE_CHECKING:
    from ncclt.store.job_queue import JobQueue

_NOTES = "ncclt.notes"
_ENV = "/v1/clusters/{cluster}/env"
_MOST_CHARACTERS = 200
_COUNTED_AGAIN_S = 30.0
"""Age at which rows are counted anew: a scrape may not scan a large table every few seconds."""

_SHARED: tuple[Any, ...] = (
    structlog.processors.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
)

_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


def note(scope: Scope, **facts: Any) -> None:
    """Add facts to the log line of a request."""
    # Middleware passes on copies of the scope, which share this dictionary.
    scope.get(_NOTES, {}).update(facts)


class Figures:
    """The figures of one application.

    Args:
        store: returns the store, once the application has started.
        queue: returns the queue of tuning jobs; StoreError where there is none.
    """

    def __init__(self, store: Callable[[], Store], queue: Callable[[], JobQueue]) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter("ncclt_requests", "Requests.", ("route", "method", "status"), registry=self.registry)
        self.seconds = Histogram(
            "ncclt_request_seconds",
            "Time from request to answer.",
            ("route",),
            buckets=_BUCKETS_S,
            registry=self.registry,
        )
        self.served = Counter(
            "ncclt_served",
            "Environments given to jobs, by verdict, origin of the times, and whether the answer was kept.",
            ("decision", "origin", "kept"),
            registry=self.registry,
        )
        self.registry.register(_Stored(store, queue))

        # Looking up a child by its labels costs more than counting.
        self._counted: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}
        self._served: dict[tuple[str, str, bool], Counter] = {}

    def count(self, route: str, method: str, status: int, seconds: float) -> None:
        """Count a request."""
        key = (route, method, status)
        if key not in self._counted:
            self._counted[key] = (self.requests.labels(route, method, str(status)), self.seconds.labels(route))
        requests, times = self._counted[key]
        requests.inc()
        times.observe(seconds)

    def count_served(self, headers: list[tuple[bytes, bytes]], *, is_kept: bool) -> None:
        """Count an environment that a job was given, by the headers of its answer."""
        decision, origin = "", "measured"
        for name, value in headers:
            if name == b"x-ncclt-decision":
                decision = value.decode("latin-1")
            elif value == b"true" and name in (b"x-ncclt-simulated", b"x-ncclt-recorded"):
                origin = name[8:].decode()
        key = (decision, origin, is_kept)
        if key not in self._served:
            self._served[key] = self.served.labels(decision, origin, "yes" if is_kept else "no")
        self._served[key].inc()

    def text(self, *, clusters: Collection[str] = ()) -> bytes:
        """Return the figures in the text format of Prometheus: all, or those of some clusters alone."""
        return generate_latest(_OfClusters(self.registry, clusters) if clusters else self.registry)


class _OfClusters(CollectorRegistry):
    """The figures of a registry that are of some clusters."""

    def __init__(self, registry: CollectorRegistry, clusters: Collection[str]) -> None:
        super().__init__()
        self._registry, self._clusters = registry, clusters

    def collect(self) -> Iterator[Metric]:
        """Yield the samples with the label of one of the clusters."""
        for family in self._registry.collect():
            family.samples = [sample for sample in family.samples if sample.labels.get("cluster") in self._clusters]
            if family.samples:
                yield family


class _Stored(Collector):
    """Gauges of stored rows and tuning jobs, counted again after `_COUNTED_AGAIN_S`."""

    def __init__(self, store: Callable[[], Store], queue: Callable[[], JobQueue]) -> None:
        self._store, self._queue = store, queue
        self._counts: dict[str, dict[tuple[str, ...], int]] = {}
        self._backlog: dict[tuple[str, JobState], list[float]] = {}
        self._counted_s = self._backlog_s = float("-inf")

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield a gauge per kind of row, and the gauges of unfinished jobs."""
        up = 1.0
        if time.monotonic() - self._counted_s >= _COUNTED_AGAIN_S:
            try:
                self._counts, self._counted_s = self._store().counts(), time.monotonic()
            except NccltError:  # ncclt_database_up reports it; keep the last counts
                up = 0.0
        yield GaugeMetricFamily("ncclt_database_up", "1 = the last reading of the database succeeded.", up)
        for name, (about, labels) in _ROWS.items():
            family = GaugeMetricFamily(f"ncclt_{name}", about, labels=labels)
            for values, count in self._counts.get(name, {}).items():
                family.add_metric(values, count)
            yield family
        yield from self._collect_jobs()

    def _collect_jobs(self) -> Iterator[GaugeMetricFamily]:
        """Yield the number of unfinished jobs, the longest wait in the queue, and the success of reading it."""
        up = 1.0
        if time.monotonic() - self._backlog_s >= _COUNTED_AGAIN_S:
            try:
                self._backlog, self._backlog_s = self._queue().backlog(), time.monotonic()
            except NccltError:  # ncclt_queue_up reports it
                self._backlog, up = {}, 0.0
        yield GaugeMetricFamily("ncclt_queue_up", "1 = the last reading of the queue of tuning jobs succeeded.", up)
        about = "Waiting time of the oldest queued job."
        waiting = GaugeMetricFamily("ncclt_jobs_waiting_seconds", about, labels=("cluster",))
        jobs = GaugeMetricFamily("ncclt_jobs", "Tuning jobs that have not ended.", labels=("cluster", "state"))
        for (cluster, state), requested_s in self._backlog.items():
            jobs.add_metric((cluster, state.value), len(requested_s))
            if state is JobState.QUEUED:
                waiting.add_metric((cluster,), max(time.time() - min(requested_s), 0.0))
        yield from (jobs, waiting)


_ROWS = {
    "studies": ("Studies.", ("cluster", "state")),
    "trials": ("Trials.", ("outcome",)),
    "recommendations": ("Published revisions.", ("cluster", "origin")),
    "records": ("Rechecks, verifications, attestations and preflights, by result.", ("kind", "result")),
    "rollouts": ("Guarded roll-outs.", ("cluster", "state")),
}


@for_requests
async def account_requests(
    app: ASGIApp, scope: Scope, receive: Receive, send: Send, *, figures: Figures, log: Any = None
) -> None:
    """Count every request, and log it if there is a log."""
    began_s = time.perf_counter()
    notes: dict[str, Any] = {}
    scope[_NOTES] = notes
    start: Message = {"status": 499, "headers": []}  # as nginx: the client closed the connection

    async def watch(message: Message) -> None:
        nonlocal start
        if message["type"] == "http.response.start":
            start = message
        await send(message)

    try:
        await app(scope, receive, watch)
    except Exception as error:
        start = {"status": 500, "headers": []}
        notes["cause"] = f"{type(error).__name__}: {error}"
        raise
    finally:
        seconds, status, route = time.perf_counter() - began_s, start["status"], _route(scope)
        figures.count(route, scope["method"], status, seconds)
        if route is _ENV and status in (200, 304):
            figures.count_served(start["headers"], is_kept="kept" in notes)
        if log is not None:
            _log_request(log, scope, status, seconds, notes)


def _log_request(log: Any, scope: Scope, status: int, seconds: float, notes: dict[str, Any]) -> None:
    if cause := notes.get("cause"):
        notes["cause"] = hide_passwords(str(cause))[:1000]
    write = log.error if status >= 500 else log.info
    write(
        "request",
        request_id=request_id(scope),
        method=scope["method"],
        path=scope["path"][:_MOST_CHARACTERS],
        status=status,
        ms=round(seconds * 1000, 2),
        client=(scope.get("client") or ("",))[0],
        **notes,
    )


def _route(scope: Scope) -> str:
    """Return the route's pattern: a label for each path would let anyone fill the memory."""
    path: str = scope["path"]
    if path.endswith("/env") and path.startswith("/v1/clusters/"):  # answered before the router
        return _ENV
    pattern = getattr(scope.get("route"), "path", None)
    return pattern or ("/assets" if path.startswith("/assets") else "none")


def start_log() -> Any:
    """Log to stderr, one line of JSON per event, or readable text on a terminal; return the log of requests.

    The records of other libraries, uvicorn's among them, take the same form.
    """
    text = sys.stderr.isatty()
    last: Any = structlog.dev.ConsoleRenderer() if text else structlog.processors.JSONRenderer()
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=_SHARED,
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.format_exc_info,
            last,
        ],
    )
    handler = logging.StreamHandler()
    handler.setFormatter(formatter)
    logging.basicConfig(handlers=[handler], level=logging.INFO, force=True)
    # Not through the standard library's logging, which would take longer than the whole answer to a job.
    return structlog.wrap_logger(
        structlog.WriteLogger(sys.stderr),
        processors=[*_SHARED, last],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        cache_logger_on_first_use=True,
    )
