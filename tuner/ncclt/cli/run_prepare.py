"""What `ncclt run` gives a job: fetched, decided, placed where its nodes read it. `run` handles failures here."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from ncclt.cli.configuration import lookup
from ncclt.cli.env import source
from ncclt.cli.job_request import job_request, request_of
from ncclt.cli.output import say
from ncclt.cli.run_start import MustNotStart, Start, all_or_none
from ncclt.core.attestation import Form
from ncclt.core.nccl_version import NcclVersion
from ncclt.deliver.handover import (
    Handover,
    is_one_of_several,
    place_plugin,
    plan_handover,
    table_path,
    write_table,
)
from ncclt.deliver.job import Job, name_for_roll_out, nodes_of, starts_others
from ncclt.deliver.job_shape import shape_of
from ncclt.deliver.offer import Offer, ask_for_offer, cache_folder, offer_from_table
from ncclt.errors import InputError, UsageError, reason
from ncclt.nccl.tuner_plugin import find

_OTHERS = (
    "if other nodes of this job did get a recommendation, ranks disagree and NCCL can hang: "
    "--shared FOLDER, --fallback fail, or --policy FILE on a shared file system, is the same for all"
)

_warn = cache(say)
"""Prints each line once: several values may be looked up in one file."""

Where = Callable[[], tuple[str | None, str | None]]
"""Return server and store, one of them None; looked up once, on demand."""


def prepared(arguments: argparse.Namespace, command: Sequence[str]) -> Start:
    """Decide what the command is given, and prepare it.

    Args:
        arguments: as `parsed` returns them.
        command: at least one word.

    Raises:
        MustNotStart: other processes of the job have, or may have, what this one lacks.
        Exception: nothing can be given.
    """
    where = cache(partial(source, arguments, warn=_warn))
    if arguments.policy is not None:
        with all_or_none():
            return _start(arguments, command, where, *_from_table(arguments, command), is_common=True)
    shared = _shared(arguments)
    if shared is not None:
        with all_or_none():
            from ncclt.deliver.shared_job import deciding_job

            job = deciding_job(arguments, command, os.environ)
            if job is not None:
                return _start(
                    arguments, command, where, *_agreed(arguments, command, where, shared, job), is_common=True
                )
    try:
        offer, handover = _alone(arguments, command, where)
    except Exception as error:
        if arguments.nodes != 1 and is_one_of_several(command, os.environ):
            error.add_note(_OTHERS)
        raise
    several_nodes = max(offer.nodes, nodes_of(command, os.environ, arguments.nodes)) > 1
    if shared is not None and several_nodes and not (is_one_of_several(command, os.environ) or starts_others(command)):
        say("ncclt: assuming that only this process decides for the job; if every node runs this, give --job NAME")
    return _start(arguments, command, where, offer, handover)


def _from_table(arguments: argparse.Namespace, command: Sequence[str]) -> tuple[Offer, Handover]:
    """Return what the table of --policy gives; other nodes may be able to read it even if this one cannot."""
    path = arguments.policy.absolute()
    plugin = find()
    if plugin is None:
        raise UsageError("--policy needs the tuner plugin", hint="build it with `ncclt plugin build`")
    offer = offer_from_table(path)
    if differs := _differs(arguments, command, offer):
        say(f"ncclt: {differs}: nothing is proven for it")
    return offer, _handover(arguments, command, offer, plugin)


def _differs(arguments: argparse.Namespace, command: Sequence[str], offer: Offer) -> str:
    """Return how the job differs from the one that a table was measured for, as far as its launcher or user says."""
    said = shape_of(command, os.environ, nodes=arguments.nodes, gpus_per_node=arguments.gpus_per_node)
    bound: dict[str, Any] = {part: one.value for part, one in said.items() if one.binding}
    nodes, gpus, version = (
        bound.get(part) or getattr(arguments, part) for part in ("nodes", "gpus_per_node", "nccl_version")
    )
    parts = (
        ("NCCL {}", offer.nccl_version, version and str(NcclVersion.parse(str(version)))),
        ("{} nodes", offer.nodes, nodes),
        ("{} ranks", offer.ranks, nodes and gpus and nodes * gpus),
    )
    differs = [(words.format(had), words.format(has)) for words, had, has in parts if had and has and had != has]
    if not differs:
        return ""
    had, has = (", ".join(side) for side in zip(*differs, strict=True))
    return f"the table was measured with {had}, and this job has {has}"


def _agreed(
    arguments: argparse.Namespace, command: Sequence[str], where: Where, shared: Path, job: Job
) -> tuple[Offer | None, Handover]:
    """Return what the processes of the job have agreed on."""
    from ncclt.deliver.shared_job import agree

    plugin = None if arguments.no_plugin else find()

    def plan(offer: Offer | None, form: Form | None) -> Handover:
        if offer is None:
            return Handover(notes=("nothing is set: NCCL's own choice stays",))
        return _handover(arguments, command, offer, None if form is Form.VARIABLES else plugin)

    # An unreadable file names no cluster; that all nodes agree on that is checked below.
    question = f"{arguments.model} on {arguments.cluster or _configured_cluster() or ''}"
    for name in ("nodes", "gpus_per_node", "nccl_version"):
        value = getattr(arguments, name)
        question += "" if value is None else f", {name.replace('_', ' ')} {value}"
    return agree(
        arguments,
        shared,
        job,
        question=question,
        ask=partial(_ask, arguments, command, where, plugin),
        plan=plan,
        tell=say,
    )


def _configured_cluster() -> str | None:
    try:
        return lookup("cluster", warn=_warn).value
    except UsageError as error:
        say(f"ncclt: {error.message}")
        return None


def _alone(arguments: argparse.Namespace, command: Sequence[str], where: Where) -> tuple[Offer, Handover]:
    """Return what this process decides for itself."""
    plugin = None if arguments.no_plugin else find()
    offer = _ask(arguments, command, where, plugin)
    return offer, _handover(arguments, command, offer, plugin)


def _ask(arguments: argparse.Namespace, command: Sequence[str], where: Where, plugin: Path | None) -> Offer:
    cluster = arguments.cluster or lookup("cluster", warn=_warn).value
    if not cluster:
        raise UsageError("no cluster is named", hint="--cluster NAME, NCCLT_CLUSTER, or `cluster` in ncclt.toml")
    server, storage = where()
    with job_request(arguments, command) as asked:
        return ask_for_offer(
            request_of(asked, cluster),
            server,
            storage,
            with_table=plugin is not None,
            timeout_s=asked.timeout,
            from_cache=asked.fallback == "cached",
            warn=say,
        )


def _shared(arguments: argparse.Namespace) -> Path | None:
    """Return the folder of the job's one decision; None with --policy, which is a decision already."""
    named: Path | None = arguments.shared
    if named is None and arguments.policy is None and os.environ.get("NCCLT_SHARED"):
        named = Path(os.environ["NCCLT_SHARED"])
    return named


def _handover(arguments: argparse.Namespace, command: Sequence[str], offer: Offer, plugin: Path | None) -> Handover:
    place = arguments.policy_dir or _shared(arguments)

    def plan(plugin: Path | None, file: Path | None) -> Handover:
        return plan_handover(
            offer,
            environ=os.environ,
            argv=command,
            plugin=plugin,
            table_file=file,
            shared=arguments.policy is not None or place is not None,
            override=arguments.override,
        )

    if arguments.policy is not None or not offer.table:
        return plan(plugin, arguments.policy and arguments.policy.absolute())
    folder = place or cache_folder() / "tables"
    handover = plan(plugin, table_path(folder, offer.table))
    if plugin is None or arguments.dry_run or handover.form is not Form.TABLE:
        return handover
    several = is_one_of_several(command, os.environ)
    if place is not None and place == _shared(arguments):
        from ncclt.deliver.agreement import require_folder

        require_folder(place)
    try:
        write_table(table_path(folder, offer.table), offer.table)
        reaches_others = not several and (offer.nodes > 1 or starts_others(command))
        if place is not None and reaches_others and "NCCL_TUNER_PLUGIN" not in os.environ:
            return plan(place_plugin(place, plugin), table_path(folder, offer.table))
        return handover
    except OSError as error:
        said = f"the table cannot be written to {folder}: {error.strerror}"
        if arguments.fallback == "fail":
            raise UsageError(said) from error
        say(f"ncclt: {said}")
    # The other nodes may use theirs. With --shared this is compared with the decision; without it nothing would notice.
    if several and place is None:
        return plan(plugin, _own_table(offer.table))
    if several and _shared(arguments) is None:
        raise MustNotStart(
            UsageError(
                f"the other nodes of this job may use the table, and this one lacks {folder}",
                hint="ranks that disagree hang or corrupt data, so this process does not start",
            )
        )
    return plan(None, None)


def _own_table(text: str) -> Path:
    """Write a table to a folder of this node, which is enough where each node has its own."""
    import tempfile

    try:
        path = table_path(Path(tempfile.mkdtemp(prefix="ncclt-table-")), text)
        write_table(path, text)
    except OSError as error:
        raise MustNotStart(
            UsageError(
                f"the other nodes of this job may use the table, and here it can be written nowhere: {reason(error)}",
                hint="ranks that disagree hang or corrupt data, so this process does not start; see TMPDIR",
            )
        ) from error
    return path


def _start(
    arguments: argparse.Namespace,
    command: Sequence[str],
    where: Where,
    offer: Offer | None,
    handover: Handover,
    *,
    is_common: bool = False,
) -> Start:
    """Return the command with its final environment."""
    for note in handover.notes:
        say(f"ncclt: {note}")
    environ = {name: value for name, value in os.environ.items() if name not in handover.unset_env}
    added = dict(handover.set_env)
    folder = None
    # Also where nothing could be set: left out, such jobs would be missing from the candidate's side alone.
    timed = arguments.step_times and offer is not None and bool(offer.rollout)
    if arguments.report is not None and (handover.form is not None or timed) and not arguments.dry_run:
        folder = _report_folder(arguments)
    if folder is not None and handover.form is not None:
        added |= _sources(folder, handover, environ)
    if folder is not None and timed:
        from ncclt.cli.run_times import timed_variables

        added |= timed_variables(folder, command, environ)
    if arguments.dry_run:
        for name, value in sorted(added.items()):
            say(f"{name}={value}")
    words, more = _forwarded(command, tuple(sorted(added)), environ)
    environ |= added | more
    beside = None
    if folder is not None and offer is not None:
        from ncclt.cli.run_report import run_and_attest

        beside = partial(
            run_and_attest,
            words,
            environ,
            offer,
            handover.form,
            folder=folder,
            where=where,
            timeout_s=arguments.timeout,
            job=name_for_roll_out(os.environ, command, named=arguments.job, nodes=arguments.nodes) if timed else "",
        )
    return Start(argv=words, environ=environ, is_common=is_common, beside=beside)


def _report_folder(arguments: argparse.Namespace) -> Path | None:
    """Make the report folder of this start; None = failed, which is printed and does not stop the training."""
    import tempfile

    base: Path = arguments.report
    try:
        base.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix="ncclt-run-", dir=base.absolute()))
    except OSError as error:
        said = f"nothing can be written to {base}: {reason(error)}"
        if arguments.fallback == "fail":
            raise InputError(said, hint="name a folder that all nodes share with --report") from error
        say(f"ncclt: no reports are kept: {said}")
        return None


def _sources(folder: Path, handover: Handover, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that make the job record what it used: in the plugin's reports, else in NCCL's log."""
    if "NCCLT_POLICY" in dict(handover.set_env):
        return {"NCCLT_PLUGIN_REPORT": str(folder)}
    if "NCCL_DEBUG" in environ:
        say("ncclt: your NCCL_DEBUG stays, so no log is kept: `ncclt attest` reads yours, if it has TUNING lines")
        return {}
    return {
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,ENV,TUNING",
        # NCCL fills in host and process, and reads %% as % (src/debug.cc).
        "NCCL_DEBUG_FILE": f"{str(folder).replace('%', '%%')}/nccl.%h.%p.log",
    }


def _forwarded(
    command: Sequence[str], names: tuple[str, ...], environ: Mapping[str, str]
) -> tuple[Sequence[str], dict[str, str]]:
    """Return the command with options to forward the variables where its launcher, Open MPI, needs them."""
    if not names or Path(command[0]).name not in ("mpirun", "mpiexec", "orterun", "prterun"):
        return command, {}
    from ncclt.profile.record.launchers import forwarded, is_open_mpi

    return forwarded(tuple(command), names, environ=environ, open_mpi=is_open_mpi(command[0], environ=environ))
