"""Everything that ncclt raises on purpose.

    NccltError
    ├── UsageError                  the request is invalid                        (exit 2,  HTTP 422)
    │   └── SettingError            a setting that NCCL would reject
    ├── NotFoundError               no such model, cluster, study                 (exit 3,  HTTP 404)
    │   └── NoRecommendationError   nothing that fits was published               (exit 3,  HTTP 404)
    │       └── StaleRecommendationError  what fits is out of date                (exit 3,  HTTP 410)
    ├── ConflictError               the state of things does not allow it         (exit 1,  HTTP 409)
    ├── InputError                  a file that is not what it should be          (exit 1,  HTTP 422)
    │   ├── TraceError              a trace, log or profile
    │   └── BenchmarkError          the output of a benchmark
    ├── StoreError                  the store is unreachable or not ncclt's       (exit 69, HTTP 503)
    ├── ServerError                 the ncclt server is unreachable or failed     (exit 69)
    ├── MissingDependencyError      an extra that is not installed                (exit 1)
    └── StudyStoppedError           the study cannot continue                     (exit 1)
        ├── NotStartedError         a launch did not start, tried again in vain   (exit 75)
        └── NodesLostError          nodes were lost                               (exit 75)
            └── HostLostError       one host cannot be reached

A failed trial is not here: it is an `Outcome`, a value. Only the edge (cli, api) knows exit codes and HTTP statuses.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

_PASSWORDS = re.compile(
    # A port is not a password. An unescaped password may hold anything, `@` and `/` included.
    r"(://[^\s:/@\[]*:)(?!\d{1,5}(?:[/\s?]|$))(?:(?!://)[^\n'\"])*(?=@)"
    r"|([?&](?:ssl)?password=)[^&\s'\"]*"
)


def hide_passwords(text: str) -> str:
    """Return a text with the passwords of all URLs in it replaced by `***`: store and server are named by URLs."""
    return _PASSWORDS.sub(lambda match: f"{match[1] or match[2]}***", text)


class NccltError(Exception):
    """The root: one readable sentence, and a hint that says what to do about it.

    Passwords in URLs are hidden here, and so on every way that an error takes: terminal, log, problem document, page.
    """

    def __init__(self, message: str, *, hint: str = "") -> None:
        self.message = hide_passwords(message)
        self.hint = hide_passwords(hint)
        super().__init__(self.message)


class UsageError(NccltError):
    """The request itself is invalid: a wrong option, a number out of range."""


class SettingError(UsageError):
    """A setting or policy that NCCL would reject or that ncclt refuses for safety."""


class DuplicateError(UsageError):
    """A new thing under a name or an id that another one has."""


class NotFoundError(NccltError):
    """A name that is not known here; the hint lists close ones."""


class NoRecommendationError(NotFoundError):
    """Nothing that was measured here fits the request, so nothing is served.

    Attributes:
        available: what there is, newest first: nodes, gpus_per_node, nccl_version, recommendation, simulated, stale.
    """

    def __init__(self, message: str, *, hint: str = "", available: tuple[dict[str, Any], ...] = ()) -> None:
        super().__init__(message, hint=hint)
        self.available = available


class StaleRecommendationError(NoRecommendationError):
    """The fitting recommendation is out of date and no longer served."""


class ConflictError(NccltError):
    """The request does not fit the present state, for example since another person was first."""


class InputError(NccltError):
    """A file that cannot be read as what it should be; nothing of it was stored."""


class TraceError(InputError):
    """A trace, log or profile that cannot be turned into a workload."""


class BenchmarkError(InputError):
    """A benchmark's output without a usable result."""


class StoreError(NccltError):
    """The store cannot be reached, or is not a store of ncclt."""


class ServerError(NccltError):
    """The ncclt server cannot be reached or answered with an error."""


class MissingDependencyError(NccltError):
    """An optional dependency of ncclt is needed and not installed."""


class StudyStoppedError(NccltError):
    """The study cannot continue, for example after many equal failures in a row."""


class NotStartedError(StudyStoppedError):
    """No process of a launch started, in several tries, so it says nothing about its setting; the study can resume."""


class NodesLostError(StudyStoppedError):
    """The nodes of a launch were lost, so it says nothing about its setting; the study can resume on other nodes."""


class HostLostError(NodesLostError):
    """One host cannot be reached any more; the others may well be there."""


_FRAMEWORK_WORDS = tuple(
    (re.compile(phrase, re.DOTALL), ours)
    for phrase, ours in (
        (r"Field required", "is missing"),
        (r"Extra inputs are not permitted", "is unknown"),
        (r"JSON decode error", "is not JSON"),
        (r"Unable to parse input string as an integer, exceeded maximum size", "has too many digits"),
        (r"Input should be a valid integer\b.*", "must be a whole number"),
        (r"Input should be a (?:valid|finite) number\b.*", "must be a number"),
        (r"Input should be a valid boolean\b.*", "must be true or false"),
        (r"Input should be a valid string\b.*", "must be a string"),
        (r"Input should be a valid (?:list|array)\b.*", "must be a list"),
        (r"Input should be (?:a valid dictionary|an object)\b.*", "must be a JSON object"),
        (r"Input should be greater than or equal to (\S+)", r"must be at least \1"),
        (r"Input should be less than or equal to (\S+)", r"must be at most \1"),
        (r"Input should be greater than (\S+)", r"must be above \1"),
        (r"Input should be less than (\S+)", r"must be below \1"),
        (r"(?:String|List|Dictionary|Value) should have at (most|least) (\d+) (\w+).*", r"must have at \1 \2 \3"),
        (r"String should match pattern (.*)", r"must match \1"),
        (r"Input should be (.*)", r"must be \1"),
    )
)
"""Phrases of pydantic, which both the command line and the service are built on, and ours; the first match counts."""


def translate_refusal(refusal: str) -> str:
    """Return the reason why a value was refused, phrased to follow the name of the value."""
    text = refusal.removeprefix("Value error, ")
    for phrase, ours in _FRAMEWORK_WORDS:
        if match := phrase.fullmatch(text):
            return match.expand(ours)
    return text


_STORE = ("sqlalchemy", "alembic", "psycopg")
_SERVICE = ("fastapi", "starlette", "pydantic", "uvicorn", "jinja2", "markupsafe")
EXTRAS: dict[str, tuple[str, ...]] = {
    "store": _STORE,
    "tune": (*_STORE, "optuna", "scipy", "numpy", "detect_secrets"),
    "api": (*_STORE, *_SERVICE, "numpy", "structlog", "prometheus_client", "itsdangerous", "python_multipart"),
    "jobs": (*_STORE, "dbos"),
    "models": ("torch", "transformers"),
}
"""Extra -> the packages that it installs, by the names of their imports."""

TORCH = "2.13.0"
"""The version that ncclt is tested with, as in constraints.txt."""

_CPU_TORCH = f"; for a CPU build, first pip install torch=={TORCH} --index-url https://download.pytorch.org/whl/cpu"


def missing_dependency(package: str, extra: str = "") -> MissingDependencyError:
    """Return the error for a package that is not installed: one sentence with the extra that installs it.

    Args:
        extra: that the command needs; empty = the first that has the package, or the package itself.
    """
    extra = extra or next((extra for extra, packages in EXTRAS.items() if package in packages), "")
    wanted = f"'ncclt[{extra}]'" if extra else package
    return MissingDependencyError(
        f"{package} is not installed: pip install {wanted}{_CPU_TORCH if package == 'torch' else ''}"
    )


def require_extra(extra: str) -> None:
    """Refuse early, with the command to type, where a package of an extra is not installed.

    Raises:
        MissingDependencyError: the first that is missing.
    """
    from importlib.util import find_spec

    for package in EXTRAS[extra]:
        if find_spec(package) is None:
            raise missing_dependency(package, extra)


def as_ncclt_error(error: Exception) -> NccltError:
    """Return an error as a sentence and a hint, whatever it is."""
    if isinstance(error, NccltError):
        return error
    if isinstance(error, ModuleNotFoundError):
        package = (error.name or "").partition(".")[0]
        if any(package in packages for packages in EXTRAS.values()):
            return missing_dependency(package)
    text = " ".join(f"{type(error).__name__}: {error}".split())[:500]
    return StoreError(f"unexpected {text}", hint="--debug shows where; please report it")


def reason(error: Exception) -> str:
    """Return the reason why something could not be read, written or reached, for a message that names it.

    Python's own text of an OSError begins with its number and ends with the path once more; that of a decoding error
    is about codecs.
    """
    if isinstance(error, UnicodeDecodeError):
        return f"it is not {error.encoding.upper()} text"
    # What a library raises as an OSError (gzip, shutil) has no number and a text of its own.
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


class StartRefused(Exception):  # noqa: N818 -- named for its consequence, like KeyboardInterrupt
    """The ranks of the job would disagree if this process started.

    Args:
        why: what is wrong, and what to do; its exit code becomes ours.
    """

    def __init__(self, why: NccltError) -> None:
        super().__init__(why.message)
        self.why = why


@contextlib.contextmanager
def all_or_none() -> Iterator[None]:
    """Turn every failure inside into `StartRefused`: what is prepared there applies to all processes of the job."""
    try:
        yield
    except StartRefused:
        raise
    except Exception as error:
        raise StartRefused(as_ncclt_error(error)) from error
