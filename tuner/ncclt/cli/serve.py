"""`ncclt serve`: the REST API and the pages."""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer

from ncclt.cli.configuration import storage_url
from ncclt.cli.keys import add_first_key
from ncclt.cli.options import spread
from ncclt.core.option import Option
from ncclt.errors import UsageError, require_extra
from ncclt.store import open_service_store
from ncclt.store.location import locate

app = typer.Typer()

_PROXIES = Option(
    "Address of a proxy whose X-Forwarded-* headers name users; repeatable.", envvar="NCCLT_TRUST_USER_HEADER"
)
_ROLES = Option("GROUP=ROLE of such users; '*=read' = all of them; repeatable.", envvar="NCCLT_USER_ROLES")


@app.command()
@spread
def serve(
    ctx: typer.Context,
    host: Annotated[str, Option("Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, Option("Port to listen on.")] = 8080,
    optuna_dashboard_url: Annotated[
        str, Option("URL of an optuna-dashboard to link to.", envvar="NCCLT_OPTUNA_DASHBOARD_URL")
    ] = "",
    insecure_no_auth: Annotated[bool, Option("Listen beyond loopback although the store has no keys.")] = False,
    first_key: Annotated[Path | None, Option("Path to the file for the first admin key.")] = None,
    allow_host: Annotated[
        list[str] | None, Option("Host name to answer to while there are no keys; repeatable.")
    ] = None,
    public_url: Annotated[
        str, Option("Public URL of the service, such as https://tuner.", envvar="NCCLT_PUBLIC_URL")
    ] = "",
    trust_user_header: Annotated[list[str] | None, _PROXIES] = None,
    user_role: Annotated[list[str] | None, _ROLES] = None,
) -> None:
    """Serve recommendations, studies and pages over HTTP.

    Once `ncclt admin keys create` has made a key, every request needs one. Until then it listens on loopback only.
    Browsers sign in with a key.
    """
    storage = storage_url()
    if not 0 <= port <= 65535:
        raise UsageError(f"--port must be 0 to 65535, not {port}")
    for option, url in (("--public-url", public_url), ("--optuna-dashboard-url", optuna_dashboard_url)):
        if url and not (urlsplit(url).scheme in ("http", "https") and urlsplit(url).netloc):
            raise UsageError(f"{option} must be an http or https address, not {url!r}")
    require_extra("api")
    _can_listen(host, port)
    if first_key:
        with open_service_store(storage) as store:
            add_first_key(store, first_key)
    argv, environment = service_command(
        "serve",
        storage,
        ctx,
        host=host,
        port=port,
        optuna_dashboard_url=optuna_dashboard_url,
        insecure=insecure_no_auth,
        hosts=allow_host or [],
        public_url=public_url.rstrip("/"),
        proxies=trust_user_header or [],
        roles=user_role or [],
    )
    os.execve(sys.executable, argv, environment)


def service_command(
    name: str, storage: str | None, ctx: typer.Context, **options: object
) -> tuple[list[str], dict[str, str]]:
    """Build the command line and environment of a command of the service, a program of its own.

    Args:
        storage: URL of the store; None = the user's own.
        options: of the service's command, as JSON.

    Raises:
        UsageError: the storage is not a database URL.
    """
    words = json.dumps({"debug": bool(ctx.find_root().params.get("debug")), **options})
    # A password in the URL would be in the list of processes. An empty variable counts as unset.
    environment = {key: value for key, value in os.environ.items() if key != "NCCLT_STORAGE"}
    if storage is not None:
        locate(storage)
        environment["NCCLT_STORAGE"] = storage
    return [sys.executable, "-m", "ncclt_api", name, words], environment


def _can_listen(host: str, port: int) -> None:
    """Raise unless the address can be bound; the server itself would only log it.

    Raises:
        UsageError: the address cannot be listened on.
    """
    try:
        family, kind, protocol, _name, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind(address)
    except OSError as error:
        raise UsageError(
            f"cannot listen on {host}, port {port}: {error.strerror}", hint="choose another --host or --port"
        ) from error
