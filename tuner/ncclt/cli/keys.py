"""`ncclt admin keys`: who may use the service."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ncclt.cli.configuration import storage_url
from ncclt.cli.options import AsJson, spread
from ncclt.cli.render import Column, print_list, say
from ncclt.core.api_key import PREFIX, USUAL_DAYS, Role, hash_secret, new_key, new_secret
from ncclt.core.option import Option
from ncclt.errors import UsageError, reason
from ncclt.store import open_store, open_to_read
from ncclt.store.clock import utc_now

if TYPE_CHECKING:
    from ncclt.store.store import Store

app = typer.Typer(help="Create, list and revoke API keys.", no_args_is_help=True)


@app.command("create")
@spread
def create(
    role: Annotated[Role, Option("Role; each includes those before it.")] = Role.READ,
    cluster: Annotated[list[str] | None, Option("Cluster of the key; repeatable; default: all.")] = None,
    expires: Annotated[str, Option("Days until the key expires, or `never`.")] = str(USUAL_DAYS),
    note: Annotated[str, Option("Note, such as the owner of the key.")] = "",
) -> None:
    """Create a key and print its secret, once.

    Once there is a key, the service refuses requests without one. Launchers read it from NCCLT_API_KEY, or from
    the file that NCCLT_API_KEY_FILE names.
    """
    if expires != "never" and not re.fullmatch(r"[1-9][0-9]{0,4}", expires):
        raise UsageError(f"--expires {expires!r} is not a number of days", hint="for example 90, or never")
    days = None if expires == "never" else int(expires)
    secret = new_secret()
    digest = hash_secret(secret)
    key = new_key(digest, role, clusters=cluster or (), note=note, now=utc_now(), days=days)
    with open_store(storage_url()) as store:
        for name in key.clusters:
            store.clusters.get(name)
        store.keys.add(key, digest=digest)
    life = f"expires {key.expires[:10]}" if key.expires else "never expires"
    say(f"ncclt: key {key.id}, {role}, {life}; save the secret:")
    sys.stdout.write(f"{secret}\n")


@app.command("list")
def list_keys(as_json: AsJson = False) -> None:
    """List the keys, oldest first."""
    with open_to_read(storage_url()) as store:
        keys = list(store.keys.find().values())
    now = utc_now()
    print_list(
        "keys",
        keys,
        [
            Column("key", lambda key: key.id),
            Column("role", lambda key: key.role.value),
            Column("clusters", lambda key: ", ".join(key.clusters) or "all"),
            Column("created", lambda key: key.created[:10], drop=1),
            Column("expires", lambda key: key.expires[:10] or "never"),
            Column("state", lambda key: "no longer valid" if key.invalid(now) else "valid"),
            Column("note", lambda key: key.note, drop=2),
        ],
        as_json=as_json,
    )


@app.command("revoke")
def revoke(id: Annotated[str, typer.Argument(help="Id of the key, see `ncclt admin keys list`.")]) -> None:
    """Revoke a key: every service refuses it within a second."""
    with open_store(storage_url(), makes=False) as store:
        key = store.keys.revoke(id, now=utc_now())
    say(f"ncclt: the key {key.id} was revoked at {key.revoked}")


def add_first_key(store: Store, file: Path) -> None:
    """Store an admin key unless the store has keys; its secret is in the file, which is made where it is absent.

    A file that is there counts: a start that was cut short is taken up again, and a secret may be mounted.

    Raises:
        UsageError: the file cannot be made or read, or holds no secret of a key.
    """
    if store.keys.find():
        return
    try:
        with os.fdopen(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w", encoding="ascii") as made:
            made.write(f"{new_secret()}\n")
    except FileExistsError:
        pass
    except OSError as error:
        raise UsageError(f"cannot write the first key to {file}: {reason(error)}") from error
    try:
        secret = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the first key from {file}: {reason(error)}") from error
    if not re.fullmatch(rf"{PREFIX}[\w-]{{43}}", secret, re.ASCII):
        raise UsageError(f"{file} holds no key", hint="remove it, and a new one is made at the next start")
    digest = hash_secret(secret)
    key = new_key(digest, Role.ADMIN, note="the first key", now=utc_now(), days=USUAL_DAYS)
    store.keys.add(key, digest=digest)
    say(f"ncclt: the first key, {key.id}, admin, expires {key.expires[:10]}, is in {file}")
