"""`ncclt attest`: whether a recommendation took effect in a job, according to the files that the job left."""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ncclt.cli.configuration import lookup, require_one_source, storage_flag
from ncclt.cli.options import AsJson
from ncclt.cli.output import print_json, print_table, say
from ncclt.core.attestation import Attestation, Effect, Form
from ncclt.core.plural import count_noun
from ncclt.errors import TraceError, UsageError

if TYPE_CHECKING:
    from ncclt.core.attestation import DeliveredPolicy

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
def attest(
    files: Annotated[
        list[Path],
        typer.Argument(help="Plugin reports and NCCL logs (INIT,ENV,TUNING) of one job, or its folder."),
    ],
    recommendation: Annotated[
        str | None, typer.Option(help="Id of the recommendation; default: from the plugin's reports.")
    ] = None,
    form: Annotated[
        Form | None, typer.Option(help="Delivery form; default: from the files.", show_default=False)
    ] = None,
    server: Annotated[str | None, typer.Option(help="URL of the ncclt server to report to. [NCCLT_SERVER]")] = None,
    # No default from the environment here: the more direct of the two counts, then the server, as in `ncclt env`.
    ticket: Annotated[
        str, typer.Option(help="Ticket of the job, which a server requires.", envvar="NCCLT_TICKET")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Compare the settings NCCL used with a recommendation."""
    from ncclt.deliver.log_evidence import attest_files, find_form, job_files, reported_tables
    from ncclt.profile.source import regular_files

    storage = storage_flag()
    require_one_source(server, storage)
    if not server and not storage:
        server, storage = lookup("server").value, lookup("storage").value
        server = server if not os.environ.get("NCCLT_STORAGE") else None
    found = [path for given in files for path in (job_files(given) if given.is_dir() else (given,))]
    if not found:
        raise TraceError(
            f"{files[0]} holds no reports", hint="`ncclt run --report FOLDER` makes a folder of each job there"
        )
    with regular_files(found, error=TraceError) as readable:
        ids = [recommendation] if recommendation else reported_tables(readable)
        if len(ids) != 1:
            said = f"the files name several: {', '.join(ids)}" if ids else "the files do not name it"
            raise UsageError(
                f"cannot tell the recommendation of the job: {said}", hint="name it with --recommendation ID"
            )
        how = form or find_form(readable)
        delivered = find_delivered(ids[0], how, server=server, storage=storage, timeout_s=_SERVER_TIMEOUT_S)
        attestation = attest_files(readable, delivered, created=datetime.now(UTC).isoformat(timespec="milliseconds"))
    if as_json:
        print_json(attestation.to_document())
    else:
        print_attestation(attestation, to_stderr=False)
    keep(attestation, ticket, server=server, storage=storage, timeout_s=_SERVER_TIMEOUT_S)
    raise typer.Exit(0 if attestation.effect is Effect.TOOK_EFFECT else 1)


def find_delivered(
    id: str, form: Form, *, server: str | None, storage: str | None, timeout_s: float
) -> DeliveredPolicy:
    """Return the policy that a recommendation delivers in one form.

    Raises:
        NotFoundError: there is no such recommendation.
        ServerError: the server is unreachable.
        UsageError: it delivers nothing in this form.
    """
    from ncclt.deliver.log_evidence import policy_from_recommendation

    if server:
        from ncclt.client.fetch import ClientError, fetch_recommendation
        from ncclt.core.recommendation import Recommendation
        from ncclt.deliver.answer import api_key, error_from_client

        try:
            document = fetch_recommendation(server, id, timeout_s=timeout_s, api_key=api_key(os.environ))
        except ClientError as error:
            raise error_from_client(error) from error
        found = Recommendation.from_document(document)
    else:
        from ncclt.store import open_to_read

        with open_to_read(storage) as store:
            found = store.recommendations.get(id)
    return policy_from_recommendation(found, form)


def keep(attestation: Attestation, ticket: str, *, server: str | None, storage: str | None, timeout_s: float) -> None:
    """Store an attestation beside its recommendation: on the server, else in the local store.

    Args:
        ticket: of the answer that the job started with; may be empty for the local store.

    Raises:
        NotFoundError: the recommendation is not known there.
        ServerError, StoreError: it cannot be reached.
    """
    if server:
        from ncclt.client.fetch import ClientError
        from ncclt.client.report import post_attestation
        from ncclt.deliver.answer import api_key, error_from_client

        try:
            post_attestation(
                server, attestation.to_document(), timeout_s=timeout_s, api_key=api_key(os.environ), ticket=ticket
            )
        except ClientError as error:
            raise error_from_client(error) from error
        say(f"ncclt: posted to {server}")
        return
    from ncclt.store import open_store

    with open_store(storage) as store:
        is_new = store.records.add_attestation(attestation)
        say(f"ncclt: {'stored in' if is_new else 'already in'} {store.shown}")


def print_attestation(attestation: Attestation, *, to_stderr: bool) -> None:
    """Print the finding and its messages.

    Args:
        to_stderr: stdout belongs to the job.
    """
    out = sys.stderr if to_stderr else sys.stdout
    say(
        f"ncclt: {attestation.recommendation} ({attestation.model} on {attestation.cluster}, as {attestation.form}) "
        f"{_WORDS[attestation.effect]}: {attestation.reason}",
        to_stdout=not to_stderr,
    )
    if attestation.rows:
        from ncclt.core.message import format_bytes

        print_table(
            ("collective", "size", "ranks", "wanted", "used", "calls", "state", "why"),
            [
                (
                    row.collective.value,
                    format_bytes(row.size_bytes) if row.size_bytes else "-",
                    str(row.group_size or "any"),
                    row.wanted,
                    row.used or "-",
                    str(row.calls),
                    row.state.value,
                    row.reason,
                )
                for row in attestation.rows[:_SHOWN_ROWS]
            ],
            numbers=("size", "ranks", "calls"),
            to_stderr=to_stderr,
        )
        if len(attestation.rows) > _SHOWN_ROWS:
            out.write(f"and {count_noun(len(attestation.rows) - _SHOWN_ROWS, 'more row')}: --json shows them\n")
    if attestation.calls_unruled:
        out.write(f"The policy leaves {count_noun(attestation.calls_unruled, 'call')} to NCCL\n")
    for note in attestation.notes:
        say(f"note: {note}", to_stdout=not to_stderr)
