"""Fetch a job's environment from an ncclt server and report what took effect; keep the last good answer for outages.

Only the standard library, in the syntax of Python 3.8: this folder can be copied into any training image. Three
promises hold whatever a server, a proxy or a cache sends:

- A job gets checked values in a text that answer.py wrote, never the server's own text.
- Only ClientError is raised: `client_errors_only`.
- Nothing takes longer than `timeout_s`: `_get` asks in a second thread and stops waiting for it.
"""

from __future__ import annotations

import functools
import hashlib
import http.client
import json
import math
import os
import re
import signal
import ssl
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

# Relative, as the folder is also copied alone.
from .answer import FORMS, MARKS, TABLES, AnswerError, form_of, one_line, written
from .trust import read_trusted, require_trusted_folder

MAX_ANSWER_BYTES = 1024 * 1024
"""Longest answer that is read; a real one has a few kilobytes."""

MAX_AGE_S = 30 * 86400.0
"""Default of how old an answer from the cache may be."""

_CACHE_SCHEMA = 2
_CLOCKS_DIFFER_S = 300.0
WRONG_SERVER = "is this the address of an ncclt server?"


class ClientError(Exception):
    """No usable answer: one sentence, a hint, and the server's HTTP status; 422 also for an invalid address."""

    def __init__(self, message: str, *, hint: str = "", status: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.status = status

    @property
    def is_outage(self) -> bool:
        """Return True if the server was unreachable or broken, rather than refusing."""
        return self.status is None or self.status >= 500 or self.status == 429


@dataclass(frozen=True)
class Reply:
    """Reply for the job: a text, its source (`server`, or `cache` during an outage), a warning for the user."""

    text: str
    source: str
    warning: str = ""


class Answered(NamedTuple):
    """Answer of a server, and when it was saved."""

    text: str
    etag: str
    saved: float
    is_for_one: bool = False


_Function = TypeVar("_Function", bound="Callable[..., Any]")


def client_errors_only(function: _Function) -> _Function:
    """Turn every other exception of a function into a ClientError.

    What the libraries raise depends on what a server sends (UnicodeError for a host, AttributeError for a scheme), so
    no list of exceptions is complete; and none may stop a training.
    """

    @functools.wraps(function)
    def guarded(*args: Any, **options: Any) -> Any:
        try:
            return function(*args, **options)
        except ClientError:
            raise
        except Exception as error:
            message = f"no usable answer: {type(error).__name__}: {one_line(error)[:200]}"
            raise ClientError(message, hint=WRONG_SERVER) from error

    return cast("_Function", guarded)


class EnvRequest(NamedTuple):
    """Request for the environment of a job.

    Attributes:
        cluster, model: names as in `ncclt tune`.
        nodes, gpus_per_node, nccl_version: the job; None is not checked by the server. One list for all collectives,
            as NCCL before 2.24 reads it, passes only with its `nccl_version`.
        driver, topology: NVIDIA's driver and the topology hash of the job's machines, which the server then compares.
        site: hash of the job's variables of the site, which the server prefers.
        format, shell, unset, channels, group: as for `ncclt env`.
        allow: `recorded`, `simulated`: accept a result that was not measured there.
        job: name of the job, equal in all of its processes, which decides whether it gets what is being rolled out;
            empty = it does not. Such an answer is for this job alone and never kept.
        kept: the server keeps its first answer for the job, so that all of its nodes get that one.
    """

    cluster: str
    model: str
    nodes: int | None = None
    gpus_per_node: int | None = None
    nccl_version: str | None = None
    driver: str | None = None
    topology: str | None = None
    site: str | None = None
    format: str = "export"
    shell: str = "bash"
    unset: bool = False
    channels: int | None = None
    group: str = ""
    allow: Collection[str] = ()
    job: str = ""
    kept: bool = False

    @property
    def form(self) -> str:
        """Return the name in `FORMS` of its format."""
        return form_of(self.format, self.shell, self.unset)

    def check(self) -> None:
        """Raise ClientError if the format or what is to be allowed is unknown."""
        if self.form not in FORMS:
            raise ClientError(f"unknown format {self.form!r}", hint=f"one of {', '.join(FORMS)}")
        if unknown := set(self.allow) - set(MARKS):
            raise ClientError(f"nothing can be allowed as {unknown.pop()!r}", hint=f"one of {', '.join(MARKS)}")

    def url(self, server: str) -> str:
        """Return its address at a server, without what belongs to the job alone."""
        names = ("model", "nodes", "gpus_per_node", "nccl_version", "driver", "topology", "site")
        query: dict[str, object] = {name: getattr(self, name) for name in names}
        query.update((name, "allow") for name in MARKS if name in self.allow)
        query.update(format=self.format if self.format in TABLES else "json", channels=self.channels)
        words = urllib.parse.urlencode({name: value for name, value in query.items() if value is not None})
        return f"{base_of(server)}/v1/clusters/{urllib.parse.quote(self.cluster, safe='')}/env?{words}"

    @property
    def job_words(self) -> str:
        """Return the rest of its address, which belongs to the job alone."""
        words = {"job": self.job, "kept": "true"} if self.kept else {"job": self.job}
        return f"&{urllib.parse.urlencode(words)}" if self.job else ""

    def write(self, text: str, source: str) -> str:
        """Return the text for the job, from an answer of a source."""
        try:
            return written(text, self.form, self._asdict())
        except AnswerError as error:
            if error.hint:
                raise ClientError(str(error), hint=error.hint, status=404) from error
            raise ClientError(f"{source} gave a bad answer: {error}", hint=WRONG_SERVER) from error
        except Exception as error:  # whatever JSON may hold
            message = f"{source} answered, but not with an environment of format {self.form}"
            raise ClientError(message, hint=WRONG_SERVER) from error


@client_errors_only
def fetch_env(
    server: str,
    *,
    cluster: str,
    model: str,
    timeout_s: float = 5.0,
    cache_dir: str | os.PathLike[str] | None = None,
    fallback: str = "none",
    api_key: str | None = None,
    max_age_s: float = MAX_AGE_S,
    **job: Any,
) -> Reply:
    """Return the environment that a server recommends for a job.

    Args:
        server: `http://host:port` or `https://...`, with a path where a proxy needs one.
        cluster, model: names as in `ncclt tune`.
        timeout_s: for the whole answer, from looking up the server's name to its last byte.
        cache_dir: where good answers are kept, one file per request; None = nowhere. Not used where others can write.
        fallback: `cached` = when the server is unreachable or broken, return the last good answer with a warning; a
            server's "nothing fits" is final. `none` = raise.
        api_key: sent as `Authorization: Bearer`, to this server and not along a redirect.
        max_age_s: an older answer from the cache is not used.
        job: other fields of `EnvRequest`.

    Raises:
        ClientError: no usable answer, with the server's own message if it sent one.
    """
    if fallback not in ("none", "cached"):
        raise ClientError(f"unknown fallback {fallback!r}", hint="it is none or cached")
    request = EnvRequest(cluster, model, **job)
    request.check()
    url = request.url(server)
    path = None if cache_dir is None else Path(cache_dir) / f"{hashlib.sha256(url.encode()).hexdigest()[:32]}.json"
    cached = _read_cache(path, url)
    try:
        answer = get(url + request.job_words, cached, api_key=api_key, timeout_s=timeout_s)
        text = request.write(answer.text, host_of(url))
    except ClientError as error:
        if fallback != "cached" or not error.is_outage:
            raise
        age_s = time.time() - cached.saved if cached else math.inf
        if cached is None or age_s > max_age_s:
            lack = f"the cached answer is {_age(age_s)} old" if cached else "nothing is cached for this request"
            raise ClientError(error.message, hint=f"{error.hint}; {lack}".lstrip("; "), status=error.status) from error
        saved = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(cached.saved))
        warning = f"{error.message}; using the answer of {saved} from the cache, {_age(age_s)} old"
        return Reply(request.write(cached.text, "the cache"), "cache", warning)
    return Reply(text, "server", "" if answer.is_for_one else _write_cache(path, url, answer))


@client_errors_only
def fetch_recommendation(server: str, id: str, *, timeout_s: float = 5.0, api_key: str | None = None) -> dict[str, Any]:
    """Return a published revision as the server's JSON object: to compare a job with, never to set.

    Raises:
        ClientError: as for `fetch_env`.
    """
    url = f"{base_of(server)}/v1/recommendations/{urllib.parse.quote(id, safe='')}"
    return {**json.loads(get(url, None, api_key=api_key, timeout_s=timeout_s).text)}


def host_of(url: str) -> str:
    """Return host and port of an address, for messages."""
    return urllib.parse.urlsplit(url).netloc


def _age(seconds: float) -> str:
    """Return an age in the largest unit that it contains at least twice."""
    for unit, length in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length:.0f} {unit}"
    return f"{max(seconds, 0):.0f} seconds"


def base_of(server: str) -> str:
    """Return the address of a server without a slash at its end; ClientError if it is not valid."""
    try:
        parts = urllib.parse.urlsplit(server)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or not re.fullmatch(r"[!-~]+", server) or parts.query or parts.fragment or "@" in parts.netloc:
        raise ClientError(f"{server!r} is not a server address", hint="write it as http://host:8080", status=422)
    return server.rstrip("/")


@client_errors_only
def get(
    url: str | urllib.request.Request, cached: Answered | None, *, api_key: str | None, timeout_s: float
) -> Answered:
    """Return the answer to a GET, or to any request; `cached` as saved now if the server says that it is unchanged."""
    request = url if isinstance(url, urllib.request.Request) else urllib.request.Request(url)  # noqa: S310 -- base_of
    request.headers.setdefault("Accept", "*/*")
    if not 0 < timeout_s < threading.TIMEOUT_MAX:
        raise ClientError(f"timeout_s must be above 0 seconds, not {timeout_s!r}")
    # A socket's timeout restarts with every byte, and looking up a name has none: a second thread does it all.
    came: list[Answered | Exception] = []
    late_s = time.monotonic() + 2 * timeout_s + 1  # connecting and reading have each ended by themselves

    def end_in_time(*_: object) -> None:
        if time.monotonic() > late_s:
            raise TimeoutError

    def ask() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # they are for the main thread
        sys.settrace(end_in_time)  # at every call here: no endless answer may keep this thread busy during the training
        try:
            came.append(_ask(request, cached, api_key=api_key, timeout_s=timeout_s))
        except Exception as error:  # noqa: BLE001 -- raised below, in the waiting thread
            came.append(error)

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(timeout_s)
    outcome = came[0] if came else TimeoutError()
    if isinstance(outcome, Answered):
        return outcome
    where = host_of(request.full_url)
    raise outcome if isinstance(outcome, ClientError) else _outage(outcome, where, timeout_s) from outcome


def _ask(
    request: urllib.request.Request, cached: Answered | None, *, api_key: str | None, timeout_s: float
) -> Answered:
    if api_key is not None and not re.fullmatch(r"[!-~]+", api_key):
        raise ClientError("the API key contains characters that no key has", hint="check it for a line break")
    where = host_of(request.full_url)
    if cached and cached.etag:
        request.add_header("If-None-Match", cached.etag)
    if api_key is not None:
        request.add_unredirected_header("Authorization", f"Bearer {api_key}")
    try:
        with _opener().open(request, timeout=timeout_s) as response:
            answer, head = _read(response, where), response.headers
            is_for_one = "no-store" in str(head.get("Cache-Control"))
            return Answered(answer.decode("utf-8"), _etag(head.get("ETag")), time.time(), is_for_one)
    except urllib.error.HTTPError as error:
        with error:
            if error.code == 304 and cached:
                return cached._replace(saved=time.time())
            raise _refusal(error, where) from error
    except UnicodeDecodeError as error:
        raise ClientError(f"{where} did not answer with text", hint=WRONG_SERVER) from error


class _Redirects(urllib.request.HTTPRedirectHandler):
    def http_error_302(self, req: Any, fp: Any, *response: Any) -> Any:
        try:
            return super().http_error_302(req, fp, *response)
        except ValueError:  # an invalid address
            fp.close()
            raise

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302  # type: ignore[assignment]


def _opener() -> urllib.request.OpenerDirector:
    """Return an opener for http and https with proxies and redirects, and without file: and ftp:."""
    opener = urllib.request.OpenerDirector()
    for name in ("Proxy", "Unknown", "HTTP", "HTTPS", "HTTPDefaultError"):
        opener.add_handler(getattr(urllib.request, f"{name}Handler")())
    opener.add_handler(_Redirects())
    opener.add_handler(urllib.request.HTTPErrorProcessor())
    return opener


def _etag(text: object) -> str:
    """Return an ETag if it can be sent back, else an empty text."""
    return text if isinstance(text, str) and re.fullmatch(r"[!-~]{1,200}", text) else ""


def _read(response: http.client.HTTPResponse, where: str) -> bytes:
    """Return the body if it is complete and not too long."""
    body = response.read(MAX_ANSWER_BYTES + 1)
    if len(body) > MAX_ANSWER_BYTES:
        raise ClientError(f"{where} answered with more than {MAX_ANSWER_BYTES} bytes", hint=WRONG_SERVER)
    if response.length:  # reading ends quietly where the connection broke
        raise ClientError(f"the answer of {where} broke off", hint="try again")
    return body


def _refusal(error: urllib.error.HTTPError, where: str) -> ClientError:
    """Return the server's own message from problem+json (RFC 9457), or that it sent none."""
    problem, status = None, f"{where} answered {error.code}"
    if error.headers.get_content_type() == "application/problem+json":
        try:
            problem = json.loads(_read(cast("http.client.HTTPResponse", error.fp), where))
        except Exception:  # noqa: BLE001 -- cut off or not JSON: reported below by its status
            problem = None
    if not isinstance(problem, dict):
        return ClientError(f"{status}, and not as ncclt does", hint=WRONG_SERVER, status=error.code)
    message = problem.get("detail") or problem.get("title") or status
    # The hint lists what exists for other jobs, one per line.
    hint = "\n    ".join(one_line(line) for line in str(problem.get("hint") or "").splitlines()[:24])
    return ClientError(one_line(message), hint=hint, status=error.code)


def _outage(error: Exception, where: str, timeout_s: float) -> ClientError:
    reason = getattr(error, "reason", error)
    if isinstance(reason, TimeoutError) or "timed out" in str(reason):
        message = f"{where} did not answer within {timeout_s:g} s"
        return ClientError(message, hint="is the server busy or behind a firewall?")
    if isinstance(reason, ConnectionRefusedError):
        return ClientError(f"nothing listens at {where}", hint="is `ncclt serve` running there?")
    if isinstance(reason, ssl.SSLError):
        return ClientError(f"no trusted connection to {where}: {reason}", hint="check the certificate or use http://")
    return ClientError(f"{where} cannot be reached: {one_line(reason) or type(error).__name__}", hint=WRONG_SERVER)


def _read_cache(path: Path | None, url: str) -> Answered | None:
    """Return the last good answer; None for a missing, broken or foreign file."""
    if path is None:
        return None
    try:
        entry = json.loads(read_trusted(path, most_bytes=2 * MAX_ANSWER_BYTES, follow=False))
        saved, text = entry["saved"], entry["text"]
        is_of_now = 0 <= saved <= time.time() + _CLOCKS_DIFFER_S  # nor NaN
        if entry["schema"] == _CACHE_SCHEMA and entry["url"] == url and isinstance(text, str) and is_of_now:
            return Answered(text=text, etag=_etag(entry["etag"]), saved=saved)
        return None
    except Exception:  # noqa: BLE001 -- whatever is wrong with the file, the server is asked anyway
        return None


def _write_cache(path: Path | None, url: str, answer: Answered) -> str:
    """Keep an answer atomically; return a warning if it could not be kept, which does not stop the job."""
    if path is None:
        return ""
    document = {"schema": _CACHE_SCHEMA, "url": url, "etag": answer.etag, "text": answer.text, "saved": answer.saved}
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        require_trusted_folder(path.parent)
        descriptor, name = tempfile.mkstemp(dir=str(path.parent), suffix=".new")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                json.dump(document, file)
            Path(name).replace(path)
        except OSError:
            Path(name).unlink()
            raise
    except OSError as error:
        return f"the answer is not cached in {path.parent}: {error.strerror or error}"
    return ""
