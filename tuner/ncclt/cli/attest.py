"""`ncclt attest`: whether a recommendation took effect in a job, according to the files that the job left."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from ncclt.cli.configuration import lookup, require_one_source, storage_flag
from ncclt.cli.options import AsJson, spread
from ncclt.cli.render import Column, print_json, print_table, print_text, say
from ncclt.core.attestation import Attestation, DeliveredPolicy, Effect, Form
from ncclt.core.message import format_bytes
from ncclt.core.option import Option
from ncclt.core.plural import count_noun
from ncclt.core.recommendation import Recommendation
from ncclt.deliver.answer import AnswerSource, api_key, server_errors
from ncclt.deliver.log_evidence import attest_files, find_form, job_files, policy_from_recommendation, reported_tables
from ncclt.errors import TraceError, UsageError
from ncclt.store import open_store, open_to_read

app = typer.Typer()

_SHOWN_ROWS = 30
_WORDS = {
    Effect.TOOK_EFFECT: "took effect",
    Effect.PARTLY: "took effect PARTLY",
    Effect.NOT_AT_ALL: "did NOT take effect",
    Effect.UNKNOWN: "unknown whether it took effect",
}
_SERVER_TIMEOUT_S = 10.0


@app.command(epilog="Exit codes: 0 = it took effect, 1 = partly, not at all, or unknown, 3 = no such recommendation.")
@spread
def attest(
    files: Annotated[
        list[Path], typer.Argument(help="Plugin reports and NCCL logs (INIT,ENV,TUNING) of one job, or its folder.")
    ],
    recommendation: Annotated[
        str | None, Option("Id of the recommendation; default: from the plugin's reports.")
    ] = None,
    form: Annotated[Form | None, Option("Delivery form; default: from the files.")] = None,
    server: Annotated[str | None, Option("URL of the ncclt server to report to. [NCCLT_SERVER]")] = None,
    # No default from the environment here: the more direct of the two counts, then the server, as in `ncclt env`.
    ticket: Annotated[str, Option("Ticket of the job, which a server requires.", envvar="NCCLT_TICKET")] = "",
    as_json: AsJson = False,
) -> None:
    """Compare the settings NCCL used with a recommendation."""
    from ncclt.profile.source import regular_files

    storage = storage_flag()
    require_one_source(server, storage)
    if not server and not storage:
        server, storage = lookup("server").value, lookup("storage").value
        server = server if not os.environ.get("NCCLT_STORAGE") else None
    source = AnswerSource(server=server, storage=storage, timeout_s=_SERVER_TIMEOUT_S)
    paths = [path for file in files for path in (job_files(file) if file.is_dir() else (file,))]
    if not paths:
        raise TraceError(
            f"{files[0]} holds no reports", hint="`ncclt run --report FOLDER` makes a folder of each job there"
        )
    with regular_files(paths, error=TraceError) as readable:
        ids = [recommendation] if recommendation else reported_tables(readable)
        if len(ids) != 1:
            why = f"the files name several: {', '.join(ids)}" if ids else "the files do not name it"
            raise UsageError(
                f"cannot tell the recommendation of the job: {why}", hint="name it with --recommendation ID"
            )
        delivered = find_delivered(ids[0], form or find_form(readable), source)
        attestation = attest_files(readable, delivered, created=utc_now())
    if as_json:
        print_json(attestation)
    else:
        print_attestation(attestation)
    keep_attestation(attestation, ticket, source)
    raise typer.Exit(0 if attestation.effect is Effect.TOOK_EFFECT else 1)


def utc_now() -> str:
    """Return the time in ISO form, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def find_delivered(id: str, form: Form, source: AnswerSource) -> DeliveredPolicy:
    """Return the policy that a recommendation delivers in one form.

    Raises:
        NotFoundError: there is no such recommendation.
        ServerError: the server is unreachable.
        UsageError: it delivers nothing in this form.
    """
    if source.server:
        from ncclt.client.fetch import fetch_recommendation

        with server_errors():
            document = fetch_recommendation(source.server, id, timeout_s=source.timeout_s, api_key=api_key(os.environ))
        recommendation = Recommendation.from_document(document)
    else:
        with open_to_read(source.storage) as store:
            recommendation = store.recommendations.get(id)
    return policy_from_recommendation(recommendation, form)


def keep_attestation(attestation: Attestation, ticket: str, source: AnswerSource) -> None:
    """Store an attestation beside its recommendation: on the server, else in the local store.

    Args:
        ticket: of the answer that the job started with; may be empty for the local store.

    Raises:
        NotFoundError: the recommendation is not known there.
        ServerError, StoreError: it cannot be reached.
    """
    if source.server:
        from ncclt.client.report import post_attestation

        key, document = api_key(os.environ), attestation.to_document()
        with server_errors():
            post_attestation(source.server, document, timeout_s=source.timeout_s, api_key=key, ticket=ticket)
        say(f"ncclt: posted to {source.server}")
        return

    with open_store(source.storage) as store:
        is_new = store.records.add_attestation(attestation)
        say(f"ncclt: {'stored in' if is_new else 'already in'} {store.shown}")


def print_attestation(attestation: Attestation, *, to_stderr: bool = False) -> None:
    """Print the finding and its messages.

    Args:
        to_stderr: stdout belongs to the job.
    """
    write = say if to_stderr else print_text
    job = f"{attestation.model} on {attestation.cluster}, as {attestation.form}"
    write(f"ncclt: {attestation.recommendation} ({job}) {_WORDS[attestation.effect]}: {attestation.reason}")
    if attestation.rows:
        print_table(
            attestation.rows[:_SHOWN_ROWS],
            [
                Column("collective", lambda row: row.collective.value),
                Column("size", lambda row: format_bytes(row.size_bytes) if row.size_bytes else "-", right=True),
                Column("ranks", lambda row: str(row.group_size or "any"), right=True, drop=1),
                Column("wanted", lambda row: row.wanted),
                Column("used", lambda row: row.used or "-"),
                Column("calls", lambda row: row.calls, drop=2),
                Column("state", lambda row: row.state.value),
                Column("why", lambda row: row.reason, drop=3),
            ],
            to_stderr=to_stderr,
        )
        if len(attestation.rows) > _SHOWN_ROWS:
            write(f"and {count_noun(len(attestation.rows) - _SHOWN_ROWS, 'more row')}: --json shows them")
    if attestation.calls_unruled:
        write(f"The policy leaves {count_noun(attestation.calls_unruled, 'call')} to NCCL")
    for remark in attestation.notes:
        write(f"note: {remark}")
