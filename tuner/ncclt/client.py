"""Fetch a job's environment from an ncclt server and tell it what took effect; keep the last good answer for when the
server is away.

The standard library alone and nothing of ncclt, in the syntax of Python 3.8: this one file can be copied into any
training image. What it returns is meant for `eval`, so an answer is passed on only if every line has the form that
ncclt writes: an HTML page of a proxy, or a server gone bad, cannot run a command in a job's shell.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import re
import signal
import ssl
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MAX_ANSWER_BYTES = 1024 * 1024
"""Longest answer that is read; a real one has a few kilobytes."""

_CACHE_SCHEMA = 1
_NAME = r"NCCLT?_[A-Z0-9_]+"
_REMARK = r"#[^\x00-\x1f\x7f]*"
_QUOTED = r"\"(?:[ !#-\[\]-~]|\\[ -~])*\""
_VERBATIM = re.compile(r"(?:" + _REMARK + r"|" + _NAME + r"=[!-~]*)?")
_TABLE = re.compile(r"(?:" + _REMARK + r"|[a-z_]+(?:,[a-z0-9_-]+){7,9})?")
# A value is a bare word or one single-quoted string: nothing that a shell would expand.
_EXPORT = re.compile(r"(?:" + _REMARK + r"|export " + _NAME + r"=(?:[A-Za-z0-9_@%+=:,./-]*|'[ -&(-~]*'))?")


def _words(option: str) -> re.Pattern[str]:
    pair = option + " " + _NAME + r"=[A-Za-z0-9_@%+=:,./;-]*"
    return re.compile(pair + r"(?: " + pair + r")*")


_LINES = {
    "export": _EXPORT,
    "export fish": re.compile(r"(?:" + _REMARK + r"|set -gx " + _NAME + r" '(?:[ -&(-\[\]-~]|\\\\|\\')*';)?"),
    "export csh": re.compile(r"setenv " + _NAME + r" '[ \"-&(-~]*';"),
    "export unset": re.compile(r"unset " + _NAME),
    "export fish unset": re.compile(r"set -q (" + _NAME + r"); and set -e \1;"),
    "export csh unset": re.compile(r"unsetenv " + _NAME + r";"),
    "pyxis": _EXPORT,
    "slurm-taskprolog": re.compile(
        _REMARK
        + r"|if \[ \"\$\{SLURM_STEP_NUM_NODES:-\$\{SLURM_JOB_NUM_NODES:-\}\}\" = [0-9]+ \]; then"
        + r"|  printf '%s\\n' \\|    'export "
        + _NAME
        + r"=[ -&(-~]*'(?: \\)?|fi|exit 0"
    ),
    "mpirun-x": _words("-x"),
    "docker-env": _words("--env"),
    "configmap": re.compile(
        _REMARK
        + r"|apiVersion: v1|kind: ConfigMap|metadata:|data:|  name: [a-z0-9.-]+|  labels:|    [a-z./-]+: [a-z]+"
        + r"|    [a-z./-]+: \"[A-Za-z0-9._-]*\"|  "
        + _NAME
        + r": "
        + _QUOTED
    ),
    "trainjob-env": re.compile(_REMARK + r"|- name: " + _NAME + r"|  value: " + _QUOTED),
    "dotenv": _VERBATIM,
    "nccl-conf": _VERBATIM,
    "tuner-csv": _TABLE,
    "nvidia-csv": _TABLE,
    "rccl-csv": _TABLE,
    "ncclx": re.compile(r"(?:" + _REMARK + r"|[a-z]+,\[[0-9]+,[0-9]*[\])],[a-z_]+,[a-z0-9]+,-?[0-9]+,[0-9]+,[0-9]+)?"),
}


class ClientError(Exception):
    """Nothing usable came back: one sentence, a hint, and the server's HTTP status where it answered."""

    def __init__(self, message: str, *, hint: str = "", status: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.status = status

    @property
    def is_outage(self) -> bool:
        """Tell whether the server was away or broken, rather than having said no."""
        return self.status is None or self.status >= 500 or self.status == 429


@dataclass(frozen=True)
class Fetched:
    """What to hand to the job.

    Attributes:
        text: in the format asked for.
        source: `server`, or `cache` when the server was away.
        warning: what a person should know, empty when all went well.
    """

    text: str
    source: str
    warning: str = ""


@dataclass(frozen=True)
class _Kept:
    text: str
    etag: str
    saved: float


def fetch_env(
    server: str,
    *,
    cluster: str,
    model: str,
    nodes: int | None = None,
    gpus_per_node: int | None = None,
    nccl_version: str | None = None,
    format: str = "export",
    timeout_s: float = 5.0,
    cache_dir: str | os.PathLike[str] | None = None,
    fallback: str = "none",
    api_key: str | None = None,
    shell: str = "bash",
    unset: bool = False,
    channels: int | None = None,
) -> Fetched:
    """Return the environment that a server recommends for a job.

    Args:
        server: `http://host:port` or `https://...`, with a path where a proxy needs one.
        cluster, model: names as in `ncclt tune`.
        nodes, gpus_per_node, nccl_version: the job; what is left out is not checked by the server.
        format: one of the server's formats.
        timeout_s: for the whole answer, from looking up the server's name to its last byte.
        cache_dir: where good answers are kept, one file per request; None = nowhere. Only its owner may be able to
            write there, as the shell will run what it holds.
        fallback: `cached` = when the server is away or broken, return the last good answer with a warning; a server
            that says "nothing fits" is believed. `none` = raise.
        api_key: sent as `Authorization: Bearer`, to this server and not along a redirect.
        shell, unset, channels: as for `ncclt env`.

    Raises:
        ClientError: no usable answer, with the server's own words where it gave them.
    """
    if fallback not in ("none", "cached"):
        raise ClientError(f"unknown fallback {fallback!r}", hint="it is none or cached")
    query = {
        "model": model, "nodes": nodes, "gpus_per_node": gpus_per_node, "nccl_version": nccl_version, "format": format,
        "shell": None if shell == "bash" else shell, "unset": "true" if unset else None, "channels": channels,
    }  # fmt: skip
    form = " ".join([format, *([shell] if shell != "bash" else []), *(["unset"] if unset else [])])
    given = urllib.parse.urlencode({name: value for name, value in query.items() if value is not None})
    url = f"{_base(server)}/v1/clusters/{urllib.parse.quote(cluster, safe='')}/env?{given}"
    path = None if cache_dir is None else Path(cache_dir) / f"{hashlib.sha256(url.encode()).hexdigest()[:32]}.json"
    kept = _read_cache(path, url, form)
    try:
        answer = _get(url, kept, api_key=api_key, timeout_s=timeout_s)
        _check_text(answer.text, form, url)
    except ClientError as error:
        if fallback != "cached" or not error.is_outage:
            raise
        if kept is None:
            hint = f"{error.hint}; nothing is cached for this request".lstrip("; ")
            raise ClientError(error.message, hint=hint, status=error.status) from error
        saved = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(kept.saved))
        said = f"using the answer of {saved} from the cache, {_age(time.time() - kept.saved)} old"
        return Fetched(kept.text, "cache", f"{error.message}; {said}")
    return Fetched(answer.text, "server", "" if answer is kept else _write_cache(path, url, answer))


def fetch_recommendation(server: str, id: str, *, timeout_s: float = 5.0, api_key: str | None = None) -> dict[str, Any]:
    """Return a published revision as the server's JSON object.

    Raises:
        ClientError: no usable answer, with the server's own words where it gave them.
    """
    url = f"{_base(server)}/v1/recommendations/{urllib.parse.quote(id, safe='')}"
    return _json_object(_get(url, None, api_key=api_key, timeout_s=timeout_s).text, url)


def post_attestation(
    server: str, document: Mapping[str, Any], *, timeout_s: float = 5.0, api_key: str | None = None
) -> None:
    """Tell a server whether its recommendation took effect in a job; saying it again changes nothing.

    Raises:
        ClientError: the server did not keep it, with its own words where it gave them.
    """
    url = f"{_base(server)}/v1/attestations"
    sent = json.dumps(dict(document)).encode()
    answer = _json_object(_get(url, None, api_key=api_key, timeout_s=timeout_s, body=sent).text, url)
    # A redirect turns a POST into a GET, whose answer is another object.
    if answer.get("id") != document["id"]:
        raise ClientError(f"{urllib.parse.urlsplit(url).netloc} did not keep the attestation", hint=_WRONG_SERVER)


def _json_object(text: str, url: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ClientError(f"{urllib.parse.urlsplit(url).netloc} answered, but not as ncclt does", hint=_WRONG_SERVER)
    return found


def _age(seconds: float) -> str:
    """Write an age in the largest unit of which there are two."""
    for unit, length in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length:.0f} {unit}"
    return f"{max(seconds, 0):.0f} seconds"


def _base(server: str) -> str:
    try:
        parts = urllib.parse.urlsplit(server)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or not re.fullmatch(r"[!-~]+", server) or parts.query or parts.fragment or "@" in parts.netloc:
        raise ClientError(f"{server!r} is no address of a server", hint="write it as http://host:8080")
    return server.rstrip("/")


def _get(url: str, kept: _Kept | None, *, api_key: str | None, timeout_s: float, body: bytes | None = None) -> _Kept:
    """Return the answer, which is `kept` itself when the server says that it still holds; with a body, POST it."""
    # A socket's time limit begins anew with every byte: another thread asks, which is not waited for any longer.
    came: list[_Kept | BaseException] = []

    def ask() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # they are for the main thread
        try:
            came.append(_ask(url, kept, api_key=api_key, timeout_s=timeout_s, body=body))
        except BaseException as error:  # noqa: BLE001 -- raised below, by the one who waits
            came.append(error)

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(timeout_s + 1.0)  # where the socket or the reading notices, they say so themselves
    if not came:
        raise _outage(TimeoutError(), urllib.parse.urlsplit(url).netloc, timeout_s)
    if isinstance(came[0], BaseException):
        raise came[0]
    return came[0]


def _ask(url: str, kept: _Kept | None, *, api_key: str | None, timeout_s: float, body: bytes | None) -> _Kept:
    if api_key is not None and not re.fullmatch(r"[!-~]+", api_key):
        raise ClientError("the API key contains characters that no key has", hint="check it for a line break")
    deadline = time.monotonic() + timeout_s
    where = urllib.parse.urlsplit(url).netloc
    headers = {"Accept": "*/*", **({} if body is None else {"Content-Type": "application/json"})}
    request = urllib.request.Request(url, data=body, headers=headers)  # noqa: S310 -- _base lets http and https pass
    if kept and kept.etag:
        request.add_header("If-None-Match", kept.etag)
    if api_key is not None:
        request.add_unredirected_header("Authorization", f"Bearer {api_key}")
    try:
        with _opener().open(request, timeout=timeout_s) as response:
            answer = _read(response, deadline, where)
            return _Kept(text=answer.decode("utf-8"), etag=response.headers.get("ETag") or "", saved=time.time())
    except urllib.error.HTTPError as error:
        with error:
            if error.code == 304 and kept:
                return kept
            raise _refusal(error, deadline, where) from error
    except UnicodeDecodeError as error:
        raise ClientError(f"{where} answered with something that is no text", hint=_WRONG_SERVER) from error
    except (OSError, http.client.HTTPException) as error:
        raise _outage(error, where, timeout_s) from error


def _opener() -> urllib.request.OpenerDirector:
    """Return an opener for http and https with proxies and redirects, and without file: and ftp:."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(), urllib.request.HTTPHandler(), urllib.request.HTTPSHandler(),
        urllib.request.HTTPRedirectHandler(), urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
    ):  # fmt: skip
        opener.add_handler(handler)
    return opener


_WRONG_SERVER = "is this the address of an ncclt server?"


def _read(response: http.client.HTTPResponse, deadline: float, where: str) -> bytes:
    """Return a body that arrived whole, in time, and is not too long."""
    body = b""
    while True:
        piece = response.read1(65536)
        body += piece
        if not piece:
            break
        if len(body) > MAX_ANSWER_BYTES:
            raise ClientError(f"{where} answered with more than {MAX_ANSWER_BYTES} bytes", hint=_WRONG_SERVER)
        if time.monotonic() > deadline:
            raise ClientError(f"{where} did not finish its answer in time", hint="try again, or allow more time")
    if response.length:  # read1 ends quietly where the connection broke
        raise ClientError(f"the answer of {where} broke off", hint="try again")
    return body


def _refusal(error: urllib.error.HTTPError, deadline: float, where: str) -> ClientError:
    """Return the server's own words from problem+json (RFC 9457), or say that these are none."""
    problem = None
    is_problem = error.headers.get_content_type() == "application/problem+json"
    if is_problem and isinstance(error.fp, http.client.HTTPResponse):
        try:
            problem = json.loads(_read(error.fp, deadline, where))
        except (ValueError, RecursionError, OSError, http.client.HTTPException, ClientError):
            problem = None  # cut off or no JSON: reported below as what it is, by its status
    if not isinstance(problem, dict):
        said = f"{where} answered {error.code}, and not as ncclt does"
        return ClientError(said, hint=_WRONG_SERVER, status=error.code)
    message = problem.get("detail") or problem.get("title") or f"{where} answered {error.code}"
    return ClientError(_one_line(message), hint=_one_line(problem.get("hint") or ""), status=error.code)


def _one_line(text: object) -> str:
    """Return printable text without line breaks: it goes to a terminal."""
    return " ".join("".join(c if c.isprintable() else " " for c in str(text)).split())[:1000]


def _outage(error: Exception, where: str, timeout_s: float) -> ClientError:
    reason = getattr(error, "reason", error)
    if isinstance(reason, TimeoutError) or "timed out" in str(reason):
        said = f"{where} did not answer within {timeout_s:g} s"
        return ClientError(said, hint="is the server busy or behind a firewall?")
    if isinstance(reason, ConnectionRefusedError):
        return ClientError(f"nothing listens at {where}", hint="is `ncclt serve` running there?")
    if isinstance(reason, ssl.SSLError):
        return ClientError(f"no trusted connection to {where}: {reason}", hint="check the certificate or use http://")
    return ClientError(f"{where} cannot be reached: {_one_line(reason) or type(error).__name__}", hint=_WRONG_SERVER)


def _check_text(text: str, format: str, where: str) -> None:
    """Refuse whatever does not look like ncclt's own text of this format."""
    host = urllib.parse.urlsplit(where).netloc
    pattern = _LINES.get(format)
    if pattern:
        good = text.endswith("\n") and all(pattern.fullmatch(line) for line in text[:-1].split("\n"))
    elif format == "json":
        try:
            good = isinstance(json.loads(text), dict)
        except (ValueError, RecursionError):
            good = False
    else:
        good = bool(text) and not text.lstrip().startswith("<")
    if not good:
        raise ClientError(f"{host} answered, but not with an environment of format {format}", hint=_WRONG_SERVER)


def _read_cache(path: Path | None, url: str, format: str) -> _Kept | None:
    """Return the last good answer; a missing, broken or foreign file is as good as none."""
    if path is None:
        return None
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        if kept["schema"] != _CACHE_SCHEMA or kept["url"] != url:
            return None
        _check_text(kept["text"], format, url)
        return _Kept(text=kept["text"], etag=str(kept["etag"]), saved=float(kept["saved"]))
    except (OSError, ValueError, RecursionError, OverflowError, KeyError, TypeError, AttributeError, ClientError):
        return None


def _write_cache(path: Path | None, url: str, answer: _Kept) -> str:
    """Keep an answer, whole or not at all; return a warning if it could not be kept: the job goes on without."""
    if path is None:
        return ""
    facts = {"etag": answer.etag, "text": answer.text, "saved": answer.saved}
    document = {"schema": _CACHE_SCHEMA, "url": url, **facts}
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=str(path.parent), suffix=".new")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                json.dump(document, file)
            Path(name).replace(path)
        except OSError:
            Path(name).unlink()
            raise
    except OSError as error:
        return f"the answer could not be kept in {path.parent}: {error.strerror}"
    return ""
