"""The second half of `ncclt run --report`: wait for the command, then say whether what it was given took effect."""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from ncclt.cli.edge import report, say
from ncclt.core.attestation import Form
from ncclt.delivery import Offer, delivered_by
from ncclt.errors import NccltError, TraceError
from ncclt.recording.command import run_foreground


def run_and_attest(
    command: Sequence[str],
    environ: Mapping[str, str],
    offer: Offer,
    form: Form,
    *,
    folder: Path,
    server: str | None,
    storage: str | None,
    timeout_s: float,
) -> int:
    """Run the command and return its exit code, whatever comes of the attestation.

    Raises:
        UsageError: the command cannot be started.
    """
    code = run_foreground(command, environ=environ)
    try:
        _attest(offer, form, folder=folder, server=server, storage=storage, timeout_s=timeout_s)
    except NccltError as error:
        report(error)
        say(f"ncclt: no attestation was made; what the job left stays in {folder}: ncclt attest reads it")
    except Exception:  # noqa: BLE001 -- shown in full; the end of the training must not pass for another one
        traceback.print_exc()
        say(f"ncclt: no attestation was made, see above; what the job left stays in {folder}")
    return code


def _attest(
    offer: Offer, form: Form, *, folder: Path, server: str | None, storage: str | None, timeout_s: float
) -> None:
    from ncclt.attestation import attest_files
    from ncclt.cli.attest import delivered_from, keep, print_attestation

    delivered = (
        delivered_by(offer, form)
        if offer.model
        else delivered_from(offer.recommendation, form, server=server, storage=storage, timeout_s=timeout_s)
    )
    if not folder.is_dir():
        raise TraceError(f"the folder of the reports is gone: {folder}", hint="does the job tidy up there?")
    # The plugin renames a finished report; what a killed process left half written is none.
    written = (path for path in folder.iterdir() if path.is_file() and path.suffix != ".part")
    files = sorted(path for path in written if path.stat().st_size)
    attestation = attest_files(files, delivered, created=datetime.now(UTC).isoformat(timespec="milliseconds"))
    print_attestation(attestation, to_stderr=True)
    keep(attestation, server=server, storage=storage, timeout_s=timeout_s)
    say(f"ncclt: the reports stay in {folder}")
