"""The answer of a server, a store or a file for a job: variables and table together, one document."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ncclt.client.answer import NEEDS, checked, checked_document, comment_lines, one_line, token
from ncclt.client.trust import UntrustedError, read_trusted
from ncclt.core.attestation import DeliveredPolicy, Form
from ncclt.core.nccl_version import NcclVersion
from ncclt.core.policy import Policy, Rule
from ncclt.core.recommendation import ORIGIN_WORDS, SHAPE_PARTS, Recommendation, Request
from ncclt.core.trial import TimesOrigin
from ncclt.deliver.attest import policy_of_variables
from ncclt.deliver.render.table import render_row
from ncclt.errors import (
    InputError,
    NccltError,
    NoRecommendationError,
    ServerError,
    StaleRecommendationError,
    UsageError,
    reason,
)
from ncclt.nccl.compile import TUNER_API_SINCE
from ncclt.nccl.tuner_table import table_checksum, table_text
from ncclt.user_dirs import user_folder

if TYPE_CHECKING:
    from ncclt.client.fetch import Reply

_MOST_KEY_BYTES = 1000
_MOST_TABLE_BYTES = 4 * 1024 * 1024

_OF_ONE_JOB = ("rollout", "variant", "job", "ticket")
"""Fields of an answer to one job."""


_TABLE_HEAD = re.compile(
    r"# ncclt-table [0-9]{1,3} id=(?P<id>[A-Za-z0-9._-]{1,64}) nccl=(?P<nccl>[0-9]{1,3}(?:\.[0-9]{1,3}){1,2}) "
    r"nodes=(?P<nodes>[0-9]{1,6}) ranks=(?P<ranks>[0-9]{1,9}) rows=(?P<rows>[0-9]{1,6}) fnv1a=(?P<fnv1a>[0-9a-f]{16})\n"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Answer of a server, store or file for a job, checked by `answer_from_*`.

    Attributes:
        recommendation, cluster, model: id and names; the names are empty for a table from a file.
        nccl_version: with which it was measured; empty = not known.
        nodes, ranks: of the measured job; 0 = not known.
        gpu, fabric: of the measured cluster; empty = not known.
        site_variables: (name, value) of the variables of the site that trials had; None = not known, or nothing was
            launched.
        simulated: the times come from a model.
        recorded: the times were recorded elsewhere and replayed.
        variables: (name, value) proven without the table.
        table: text for the plugin; empty = there is none.
        rules: of the table.
        table_variables: (name, value) that the table needs.
        document: the whole answer of a server or store, to be passed on; empty for a table from a file.
        rollout: id of the roll-out that the job is part of; empty = none.
        variant: what it is given in it.
        job: name of the job for which the server keeps this answer, so that all of its nodes get it; empty = none.
        ticket: opaque; proves in reports that a job started with this answer. Empty = none.
        refusal: why the server gives the job nothing; empty = it gives it something.
    """

    recommendation: str
    cluster: str = ""
    model: str = ""
    nccl_version: str = ""
    nodes: int = 0
    ranks: int = 0
    gpu: str = ""
    fabric: str = ""
    site_variables: tuple[tuple[str, str], ...] | None = None
    simulated: bool = False
    recorded: bool = False
    variables: tuple[tuple[str, str], ...] = ()
    table: str = ""
    rules: Policy = field(default_factory=Policy)
    table_variables: tuple[tuple[str, str], ...] = ()
    document: Mapping[str, Any] = field(default_factory=dict)
    rollout: str = ""
    variant: str = ""
    job: str = ""
    ticket: str = ""
    refusal: str = ""

    @property
    def is_empty(self) -> bool:
        """Return True if it sets nothing: the NCCL default was kept."""
        return not (self.variables or self.table)

    @property
    def why_nothing(self) -> str:
        """Return the verdict that leaves variables nothing to set, with its reason; empty where they were proven."""
        if self.refusal:
            return one_line(self.refusal)
        verdict = self.document.get("table_verdict")
        if self.document.get("decision", "tuned") == "tuned" or not isinstance(verdict, Mapping):
            return ""
        mark = "SIMULATED: " if self.simulated else "recorded: " if self.recorded else ""
        if verdict.get("decision") == "tuned":
            return f"{mark}only the table was validated"
        return one_line(f"{mark}{verdict.get('decision')}: {verdict.get('reason')}")


def answer_from_json(text: str) -> Answer:
    """Read an answer from the text of the format `json`.

    Raises:
        InputError: the text is not in this format, or sets what ncclt never sets.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _no_answer(error) from error
    return answer_from_document(document)


def answer_from_document(document: Any) -> Answer:
    """Read an answer from a document of the format `json`; its table is written here, from its rules.

    Raises:
        InputError: the document is not in this format, or sets what ncclt never sets.
    """
    try:
        fields = checked_document(document, document["nccl_version"])
        policy = Policy.from_document({"rules": fields["table"], "parameters": fields["table_parameters"]})
        rules = tuple(rule for rule in policy.rules if rule.algorithm and rule.protocol)
        table_variables = tuple((f"NCCL_{name}", str(value)) for name, value in policy.parameters)
        table = _render_table(fields, rules, table_variables)
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError, NccltError) as error:
        raise _no_answer(error) from error
    names = ("recommendation", "cluster", "model", "nccl_version", "nodes", "gpu", "fabric")
    copied: dict[str, Any] = {name: fields[name] for name in (*names, *_OF_ONE_JOB) if name in fields}
    return Answer(
        **copied,
        ranks=fields["nodes"] * fields["gpus_per_node"],
        site_variables=tuple(sorted(fields["site_variables"].items())) if "site_variables" in fields else None,
        simulated=fields["origin"] == TimesOrigin.SIMULATED,
        recorded=fields["origin"] == TimesOrigin.RECORDED,
        variables=tuple(sorted(fields["variables"].items())),
        table=table,
        rules=Policy(rules=rules),
        table_variables=table_variables,
        document=document,
    )


def _render_table(fields: Mapping[str, Any], rules: tuple[Rule, ...], needed: tuple[tuple[str, str], ...]) -> str:
    version = NcclVersion.parse(fields["nccl_version"])
    if not rules or version < TUNER_API_SINCE:
        return ""
    job = {"nodes": fields["nodes"], "ranks": fields["nodes"] * fields["gpus_per_node"]}
    mark = [ORIGIN_WORDS[origin]] if (origin := TimesOrigin(fields["origin"])) in ORIGIN_WORDS else []
    return table_text(
        [render_row(rule, **job) for rule in sorted(rules, key=lambda rule: rule.precedence)],
        table_id=token(fields["recommendation"]),
        version=version,
        **job,
        comments=comment_lines([*mark, *(f"needs {name}={value} in the environment" for name, value in needed)]),
    )


def _no_answer(error: Exception) -> InputError:
    return InputError(f"this is not an answer of ncclt: {error}", hint="update ncclt here or on the server")


def answer_from_table(path: Path) -> Answer:
    """Read a table as `ncclt env --format tuner-csv` writes it.

    Raises:
        UsageError: it cannot be read, is not a table of ncclt, or is damaged.
        InputError: it needs variables that ncclt never sets.
    """
    try:
        text = read_trusted(path, most_bytes=_MOST_TABLE_BYTES).decode("ascii")
    except UntrustedError as error:
        raise UsageError(f"the table was skipped: {error}", hint=error.hint) from error
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"the table {path} cannot be read: {reason(error)}", hint="name a file of --format tuner-csv"
        ) from error
    head = _TABLE_HEAD.match(text)
    if head is None:
        raise UsageError(
            f"{path} does not begin like a table of ncclt",
            hint="write it with `ncclt env --format tuner-csv`; for your own table set NCCLT_POLICY yourself",
        )
    lines = [line.strip() for line in text.splitlines()]
    rows = [line for line in lines if line and not line.startswith("#")]
    if (len(rows), f"{table_checksum(rows):016x}") != (int(head["rows"]), head["fnv1a"]):
        raise UsageError(
            f"the table {path} is damaged or was edited: its rows do not fit its first line",
            hint="write it again with `ncclt env`; for your own table set NCCLT_POLICY yourself",
        )
    try:
        needed = checked(dict(NEEDS.findall(text)), head["nccl"])
    except ValueError as error:
        raise InputError(f"the table {path} cannot be used: {error}", hint="write it again with `ncclt env`") from error
    return Answer(
        recommendation=head["id"],
        nccl_version=head["nccl"],
        nodes=int(head["nodes"]),
        ranks=int(head["ranks"]),
        simulated=any(line.startswith("# SIMULATED") for line in lines),
        recorded=any(line.startswith("# recorded") for line in lines),
        table=text if int(head["rows"]) else "",
        table_variables=tuple(sorted(needed.items())),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerSource:
    """Place that answers come from and reports go to: a server, else a store.

    Attributes:
        server: address; None or empty = the store.
        storage: URL of the store; None = the default one.
        timeout_s: for each request to the server.
    """

    server: str | None = None
    storage: str | None = None
    timeout_s: float


def request_answer(
    request: Request, source: AnswerSource, *, from_cache: bool, warn: Callable[[str], None], per_job: bool = False
) -> Answer:
    """Request an answer from the server by one request, or from the store if there is no server.

    Args:
        from_cache: use the cached answer if the server is unreachable.
        warn: receives a line for the user, at once.
        per_job: the server keeps its first answer for the job, also that nothing fits, which is then an empty answer.

    Raises:
        NoRecommendationError: nothing fitting was published, or it is stale.
        UsageError: the server refuses the request, for example an invalid version.
        ServerError: the server is unreachable or broken, and the cache has no answer.
        InputError: the answer is invalid.
    """
    if not source.server:
        from ncclt.deliver.variant import serve_from_store

        served, ticket = serve_from_store(source.storage, request, with_ticket=True)
        return answer_from_recommendation(served.recommendation, served.to_document() | ticket)
    cache = {"fallback": "cached" if from_cache else "none", **cache_options()} if not per_job else {}
    try:
        options = {"format": "json", "timeout_s": source.timeout_s, "kept": per_job}
        reply = fetch_for_request(request, source.server, **options, **cache)
    except NoRecommendationError as error:
        if not per_job:
            raise
        return Answer(recommendation="", job=request.job, refusal=error.message)
    if reply.warning:
        warn(f"ncclt: {reply.warning}")
    return answer_from_json(reply.text)


def answer_from_recommendation(recommendation: Recommendation, variant: Mapping[str, str] | None = None) -> Answer:
    """Return the answer that delivers a recommendation.

    Args:
        variant: variant, reason and roll-out, where they are known.

    Raises:
        NoRecommendationError: the proof ended undecided.
    """
    from ncclt.deliver.render.formats import env_document

    return answer_from_document(env_document(recommendation) | dict(variant or {}))


@contextmanager
def server_errors() -> Iterator[None]:
    """Raise the error of ncclt for a failure of the client inside."""
    from ncclt.client.fetch import ClientError

    kinds: dict[int | None, type[NccltError]] = {
        404: NoRecommendationError,
        409: NoRecommendationError,
        410: StaleRecommendationError,
        422: UsageError,
    }
    try:
        yield
    except ClientError as error:
        raise kinds.get(error.status, ServerError)(error.message, hint=error.hint) from error


def fetch_for_request(request: Request, server: str, **options: Any) -> Reply:
    """Fetch a server's answer for a job; `options` as of `fetch_env`.

    Raises:
        NoRecommendationError, StaleRecommendationError, UsageError, ServerError: by the status, see `server_errors`.
    """
    from ncclt.client.fetch import fetch_env

    with server_errors():
        names = ("cluster", "model", *SHAPE_PARTS, "driver", "site", "job")
        return fetch_env(
            server,
            **{name: getattr(request, name) for name in names},
            topology=request.topology_hash,
            allow=request.allowed,
            # A key on the command line would show in the process list.
            api_key=api_key(os.environ),
            **options,
        )


def cache_options() -> dict[str, Any]:
    """Return folder and maximum age of cached answers: the options `cache_dir` and `max_age_s`.

    Raises:
        UsageError: NCCLT_CACHE_DAYS is not a number of days.
    """
    from ncclt.client.fetch import MAX_AGE_S

    days = os.environ.get("NCCLT_CACHE_DAYS", "")
    if days and not re.fullmatch(r"[0-9]{1,5}(\.[0-9]{1,5})?", days, re.ASCII):
        raise UsageError(f"NCCLT_CACHE_DAYS is {days!r}, which is not a number of days", hint="for example 7")
    return {"cache_dir": cache_folder() / "env", "max_age_s": float(days) * 86400 if days else MAX_AGE_S}


def api_key(environ: Mapping[str, str]) -> str | None:
    """Return the key of NCCLT_API_KEY, else the one in the file that NCCLT_API_KEY_FILE names; None = there is none.

    Raises:
        UsageError: the file cannot be read, or does not hold a key alone.
    """
    if (key := environ.get("NCCLT_API_KEY")) or not (name := environ.get("NCCLT_API_KEY_FILE")):
        return key or None
    try:
        # Opening a FIFO would wait for a writer.
        with os.fdopen(os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            text = file.read(_MOST_KEY_BYTES + 1) or b""
    except (OSError, ValueError) as error:
        raise UsageError(
            f"NCCLT_API_KEY_FILE {name!r} cannot be read: {reason(error)}", hint="name a file that holds the key alone"
        ) from error
    key = text.decode("latin-1").strip()
    if not re.fullmatch(rf"[!-~]{{1,{_MOST_KEY_BYTES}}}", key):
        raise UsageError(f"NCCLT_API_KEY_FILE {name!r} does not hold a key", hint="it holds the key alone, on one line")
    return key


def cache_folder() -> Path:
    """Return the folder of this user's cached answers and tables."""
    return user_folder("XDG_CACHE_HOME", ".cache") / "ncclt"


def policy_from_answer(answer: Answer, form: Form) -> DeliveredPolicy:
    """Return the policy that a job was given, for the attestation afterwards."""
    version = NcclVersion.parse(answer.nccl_version)
    variables = answer.table_variables if form is Form.TABLE else answer.variables
    names = ("recommendation", "cluster", "model", "nccl_version", "ranks")
    return DeliveredPolicy(
        **{name: getattr(answer, name) for name in names},
        form=form,
        policy=answer.rules if form is Form.TABLE else policy_of_variables(dict(variables), version),
        variables=variables,
    )
