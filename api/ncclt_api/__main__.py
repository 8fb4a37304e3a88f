"""`python -m ncclt_api COMMAND OPTIONS`: the service's part of `ncclt serve` and `ncclt report`.

The options are a JSON object of keyword arguments. The store is that of NCCLT_STORAGE: its URL may hold a password.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import Any

from ncclt.cli.exits import report
from ncclt.errors import NccltError
from ncclt.store import open_to_read


def serve(
    *, host: str, port: int, insecure: bool, proxies: Sequence[str], roles: Sequence[str], **options: Any
) -> None:
    """Serve the store.

    Args:
        host, port, insecure: as for `ncclt_api.app.serve`.
        proxies, roles: as for `proxy_plan`.
        options: of `ServiceOptions`.
    """
    from ncclt_api import app
    from ncclt_api.proxy_users import proxy_plan

    secret = os.environ.get("NCCLT_SESSION_SECRET", "")
    service = app.ServiceOptions(session_secret=secret, users=proxy_plan(proxies, roles), **options)
    app.serve(os.environ.get("NCCLT_STORAGE"), host, port, service, insecure=insecure)


def write_report(*, study: str) -> None:
    """Write the report of a study to standard output.

    Args:
        study: its id, the start of an id, or its name.
    """
    from ncclt_api.pages.report import study_report

    with open_to_read(os.environ.get("NCCLT_STORAGE")) as store:
        # Whatever the locale is: the page says that it is UTF-8.
        sys.stdout.buffer.write(study_report(store, store.studies.get(study)).encode())


def main(command: str, options: str) -> int:
    """Run a command and return its exit code."""
    values = json.loads(options)
    debug = values.pop("debug")
    try:
        if command == "serve":
            serve(**values)
        else:
            write_report(**values)
    except NccltError as error:
        if debug:
            raise
        return report(error)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
