"""Decide what a job is given before it starts: variables, or a table for the plugin with the variables that it needs.

Two rules. What was measured together is delivered together or not at all: a mixture with the user's own choice was
never measured, and may leave a collective without an algorithm. And a table that some nodes have and others lack makes
ranks disagree, which hangs a job or corrupts its data: it is used only where every node certainly reads it.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from ncclt.core.attestation import Form
from ncclt.deliver.effect import CHOICE_VARIABLES
from ncclt.deliver.job import RANK_VARIABLES, is_node_launcher, starts_others
from ncclt.deliver.offer import Offer
from ncclt.nccl.tuner_plugin import DELEGATE_VARIABLE, LIBRARY_NAME
from ncclt.nccl.tuner_table import announced_checksum

_READABLE, _ENTERED = 0o644, 0o755

_NO_OTHER_TUNER = ("", "none", "ncclt", LIBRARY_NAME)
"""Last parts of NCCL_TUNER_PLUGIN that name no other tuner than ours."""

_ASSIGNED = re.compile(r"(?:^|[\s,;'\"])(NCCLT?_[A-Z0-9_]+)=([^\s,;'\"]*)")
"""As in `-x NCCL_ALGO=ring`, `--export=ALL,NCCL_ALGO=ring`, `env NCCL_ALGO=ring` and a script for `sh -c`."""

_HYDRA_OPTIONS = ("-genv", "-env")
"""MPICH and Intel MPI take name and value as two arguments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Handover:
    """What is set for a job.

    Attributes:
        set_env, unset_env: changes to its environment.
        form: how the policy is delivered; None = it is not.
        notes: for the user, one sentence each.
    """

    set_env: tuple[tuple[str, str], ...] = ()
    unset_env: tuple[str, ...] = ()
    form: Form | None = None
    notes: tuple[str, ...] = ()


def plan_handover(
    offer: Offer,
    *,
    environ: Mapping[str, str],
    argv: Sequence[str],
    plugin: Path | None,
    table_file: Path | None,
    shared: bool,
    override: bool,
) -> Handover:
    """Decide what a job is given; nothing is written yet.

    Args:
        offer: what is available for it.
        environ: the environment that it inherits.
        argv: its command.
        plugin: the compiled plugin; None = missing or not wanted.
        table_file: absolute path of the table, which need not exist yet.
        shared: every node can read `table_file`, according to the user.
        override: replace the user's own variables.
    """
    notes = []
    form = None
    if plugin is None and (offer.table or offer.rules.rules):
        notes.append(
            "the table per size is not used: the plugin is not here (`ncclt plugin build` makes it) or not wanted"
        )
    elif offer.table and (why := _where_it_lacks(offer, argv, environ, shared=shared)):
        notes.append(f"the table is not used: {why}")
    elif offer.table:
        form = Form.TABLE
    if form is None and offer.variables:
        form = Form.VARIABLES
    if form is None:
        why = f" ({offer.why_nothing})" if offer.why_nothing else ""
        return Handover(notes=(*notes, f"nothing is set: NCCL's own choice stays{why}"))
    delivered = dict(offer.table_variables if form is Form.TABLE else offer.variables)
    if form is Form.TABLE:
        delivered |= {"NCCL_TUNER_PLUGIN": str(plugin), "NCCLT_POLICY": str(table_file)}
        if checksum := announced_checksum(offer.table):
            delivered["NCCLT_POLICY_CHECKSUM"] = checksum
    fixed = _conflicts(delivered, _set_by(argv), form)
    if fixed:
        notes.append(
            f"the command itself sets {', '.join(f'{name}={value}' for name, value in fixed.items())}, so nothing "
            "else is set: what was measured together is delivered together or not at all (take it out of the command)"
        )
        return Handover(notes=tuple(notes))
    own = tuple(_conflicts(delivered, environ, form))
    if own and not override:
        listed = ", ".join(f"{name}={environ[name]}" for name in own)
        notes.append(
            f"your {listed} stays, so nothing else is set: what was measured together is delivered together or not at "
            "all (--override replaces yours)"
        )
        return Handover(notes=tuple(notes))
    if "NCCL_TUNER_PLUGIN" in own and PurePath(theirs := environ["NCCL_TUNER_PLUGIN"]).name not in _NO_OTHER_TUNER:
        # It still answers what the table does not decide.
        delivered[DELEGATE_VARIABLE] = environ.get(DELEGATE_VARIABLE, theirs)
    if own:
        notes.append(f"--override replaces your {', '.join(f'{name}={environ[name]}' for name in own)}")
    if offer.simulated:
        place = offer.cluster or "a cluster"
        notes.append(f"SIMULATED: {offer.model or 'it'} was tuned on a model of {place}, nothing was measured")
        delivered["NCCLT_SIMULATED"] = "1"
    elif offer.recorded:
        notes.append(
            f"recorded: {offer.model or 'it'} was tuned on times that were recorded elsewhere, nothing was launched"
        )
        delivered["NCCLT_RECORDED"] = "1"
    delivered["NCCLT_RECOMMENDATION"] = offer.recommendation
    return Handover(
        set_env=tuple(sorted(delivered.items())),
        unset_env=tuple(name for name in own if name not in delivered),
        form=form,
        notes=tuple(notes),
    )


def _where_it_lacks(offer: Offer, argv: Sequence[str], environ: Mapping[str, str], *, shared: bool) -> str:
    """Return why some node of the job may lack the table; empty = all have it."""
    if shared:
        return ""
    begins = PurePath(argv[0]).name
    hint = "name a folder that all nodes share with --policy-dir"
    if starts_others(argv):
        return f"{begins} starts processes on nodes that may not see it; {hint}"
    if offer.nodes > 1 and not is_one_of_several(argv, environ):
        return f"it is for {offer.nodes} nodes, and who starts the others is not known; {hint}"
    return ""


def is_one_of_several(argv: Sequence[str], environ: Mapping[str, str]) -> bool:
    """Return whether this command is started on every node of a job, so that each node decides for itself."""
    return any(name in environ for name in RANK_VARIABLES) or is_node_launcher(argv)


def _conflicts(delivered: Mapping[str, str], theirs: Mapping[str, str], form: Form) -> dict[str, str]:
    """Return the user's own variables that conflict with what is delivered."""
    rivals = [*CHOICE_VARIABLES, *(("NCCLT_POLICY_SHM", "NCCLT_TABLE") if form is Form.TABLE else ())]
    return {
        name: theirs[name]
        for name in sorted({*delivered, *rivals})
        if name in theirs and theirs[name] != delivered.get(name)
    }


def _set_by(argv: Sequence[str]) -> dict[str, str]:
    """Return the variables of NCCL and ncclt that a command sets for its processes, which override inherited ones."""
    found = {name: value for word in argv for name, value in _ASSIGNED.findall(word)}
    for option, name, value in zip(argv, argv[1:], argv[2:], strict=False):
        if option in _HYDRA_OPTIONS and name.startswith("NCCL"):
            found[name] = value
    return found


def effective(handover: Handover, environ: Mapping[str, str]) -> dict[str, str]:
    """Return every variable that decides NCCL's choices in a process, for comparison with other nodes.

    Of plugin and table only the file names count: their folders may be mounted elsewhere, and a table is named by a
    hash of its content.
    """
    after = {name: value for name, value in environ.items() if name not in handover.unset_env} | dict(handover.set_env)
    # The user's own tuner plugin decides too, and so does its table.
    tuner = ["NCCL_TUNER_PLUGIN", "NCCLT_POLICY" if "NCCLT_POLICY" in after else "NCCL_TUNER_CONFIG_FILE"]
    names = {
        *CHOICE_VARIABLES,
        "NCCLT_POLICY_SHM",
        "NCCLT_TABLE",
        DELEGATE_VARIABLE,
        *tuner,
        *(name for name, _ in handover.set_env),
    }
    by_name = ("NCCL_TUNER_PLUGIN", "NCCLT_POLICY", "NCCL_TUNER_CONFIG_FILE", DELEGATE_VARIABLE)
    return {
        name: PurePath(after[name]).name if name in by_name else after[name] for name in sorted(names) if name in after
    }


def table_path(folder: Path, text: str) -> Path:
    """Return the path of a table, named by its hash, so that jobs share it and never overwrite another one."""
    return folder.absolute() / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.csv"


def write_table(path: Path, text: str) -> None:
    """Write a table atomically; it is never removed, since communicators may open late.

    Other users can read it: a TaskProlog may serve them, and a folder a group. An intact file is never replaced: a node
    that reads it over NFS at that moment would fail and choose differently from the rest.

    Raises:
        OSError: it cannot be written there.
    """
    _put(path, text.encode())


def place_plugin(folder: Path, plugin: Path) -> Path:
    """Copy the plugin beside the tables, and return its path.

    A process that decides for other nodes or users only knows that they can read this folder, and a node with the table
    but without the plugin would choose differently from the rest. If the folder is mounted noexec, the plugin stays
    where it is.

    Raises:
        OSError: it cannot be read, or not written there.
    """
    content = plugin.read_bytes()
    path = folder.absolute() / hashlib.sha256(content).hexdigest()[:32] / LIBRARY_NAME
    _put(path, content)
    facts = path.parent.stat()
    if facts.st_uid == os.geteuid() and facts.st_mode & _ENTERED != _ENTERED:
        path.parent.chmod(_ENTERED)
    return plugin if os.statvfs(path).f_flag & os.ST_NOEXEC else path


def _put(path: Path, content: bytes) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if _holds(path, content):
        return
    descriptor, name = tempfile.mkstemp(dir=path.parent, suffix=".new")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            os.fchmod(descriptor, _READABLE)
        try:
            path.hardlink_to(name)
        except OSError:  # it exists, maybe damaged, or the file system has no hard links
            if not _holds(path, content):
                Path(name).replace(path)
    finally:
        Path(name).unlink(missing_ok=True)


def _holds(path: Path, content: bytes) -> bool:
    """Return whether a file has this content; if it is ours, make it readable for others."""
    if not path.is_file() or path.read_bytes() != content:
        return False
    facts = path.stat()
    if facts.st_uid == os.geteuid() and facts.st_mode & _READABLE != _READABLE:
        path.chmod(_READABLE)
    return True
