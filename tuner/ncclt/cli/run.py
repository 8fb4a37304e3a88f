"""`ncclt run`: start a job with what was proven for it, and say afterwards whether it took effect."""

from __future__ import annotations

import argparse
import errno
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from ncclt.cli.configuration import lookup
from ncclt.cli.edge import report, say
from ncclt.cli.env import source
from ncclt.cli.offer import OfferTexts, cache_folder, offered
from ncclt.core.attestation import Form
from ncclt.core.version import NcclVersion
from ncclt.delivery import (
    Handover,
    Offer,
    is_one_of_several,
    offer_from_table,
    place_plugin,
    plan_handover,
    table_path,
    write_table,
)
from ncclt.errors import NccltError, UsageError
from ncclt.job import starts_others
from ncclt.plugin import find

_DESCRIPTION = """\
Start a training with what was proven for it: the per-size table where the tuner plugin is there, else plain variables.

  torchrun on each node:   ncclt run --cluster leonardo --model bert --nodes 2 -- torchrun ... train.py
  srun or mpirun:          ncclt run --cluster ... --model ... --policy-dir /shared/folder -- srun ... train.py
  many nodes, each alike:  ncclt run --cluster ... --model ... --shared /shared/folder -- torchrun ... train.py

Your own NCCL_* variables win. A server that is away never stops the training, unless --fallback fail says so.
The exit code is that of the command; 2 = wrong usage, 69 = with --shared, what the job was given cannot be learnt here,
126 or 127 = the command cannot be started.
"""

_NOT_EXECUTABLE, _NOT_FOUND = 126, 127
"""As a shell gives them."""


def parser() -> argparse.ArgumentParser:
    """Return the parser of what stands before `--`."""
    made = argparse.ArgumentParser(
        prog="ncclt run",
        usage="ncclt run --cluster NAME --model NAME [options] -- COMMAND ...",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    made.add_argument("--cluster", help="name of the cluster [NCCLT_CLUSTER]")
    made.add_argument("--model", help="name of the workload")
    made.add_argument("--nodes", type=int, help="nodes of the job; refused unless measured with as many")
    made.add_argument("--gpus-per-node", type=int, help="GPUs per node of the job, checked likewise")
    made.add_argument("--nccl-version", help="NCCL that the job loads, checked likewise")
    made.add_argument("--server", help="fetch from this ncclt server instead of the local store [NCCLT_SERVER]")
    made.add_argument("--storage", help="database URL of the local store [NCCLT_STORAGE]")
    made.add_argument("--timeout", type=float, default=2.0, help="seconds to wait for the server (default 2)")
    made.add_argument(
        "--fallback",
        choices=("cached", "none", "fail"),
        default="cached",
        help="where the server is away: its last good answer, else NCCL's own choice (default); NCCL's own choice; "
        "do not start",
    )
    made.add_argument(
        "--policy", type=Path, metavar="FILE", help="use this table, on a file system that all nodes share"
    )
    made.add_argument("--policy-dir", type=Path, metavar="FOLDER", help="folder that all nodes share, for the table")
    made.add_argument(
        "--shared",
        type=Path,
        metavar="FOLDER",
        help="folder that all nodes share: the job decides once there, and tables lie there [NCCLT_SHARED]",
    )
    made.add_argument(
        "--job",
        metavar="NAME",
        help="with --shared: name of the job where its launcher tells none; new for every start [NCCLT_JOB]",
    )
    made.add_argument(
        "--wait",
        type=float,
        default=10.0,
        metavar="SECONDS",
        help="with --shared: where nothing can be had here, wait for another node's answer (default 10)",
    )
    made.add_argument("--no-plugin", action="store_true", help="set variables only")
    made.add_argument("--override", action="store_true", help="replace NCCL_* variables that are set already")
    made.add_argument(
        "--report", type=Path, metavar="FOLDER", help="keep reports there and say afterwards whether it took effect"
    )
    made.add_argument("--dry-run", action="store_true", help="show what would be set, on stderr; start nothing")
    made.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return made


def main(argv: Sequence[str]) -> int:
    """Start the command and return its exit code; without --report this process becomes the command."""
    words = list(argv)
    cut = words.index("--") if "--" in words else len(words)
    arguments = parser().parse_args(words[:cut])
    command = words[cut + 1 :]
    try:
        return _run(arguments, command)
    except NccltError as error:
        if arguments.debug:
            raise
        return report(error)


def _run(arguments: argparse.Namespace, command: list[str]) -> int:
    _check(arguments, command)
    cluster = arguments.cluster or lookup("cluster").value or ""
    server, storage = source(arguments)
    if arguments.policy is None and not (cluster and arguments.model):
        raise UsageError("--cluster and --model are needed", hint="or --policy FILE; the command stands behind --")
    plugin = None if arguments.no_plugin else find()
    if arguments.policy is not None and plugin is None:
        raise UsageError("--policy needs the tuner plugin", hint="build it with `ncclt plugin build`")

    def ask() -> OfferTexts:
        return offered(arguments, cluster, server, storage, with_table=plugin is not None)

    offer, handover = _decided(arguments, command, plugin, cluster=cluster, ask=ask)
    for note in handover.notes:
        say(f"ncclt: {note}")
    environ = {name: value for name, value in os.environ.items() if name not in handover.unset_env}
    added = dict(handover.set_env)
    folder = None
    if arguments.report is not None and handover.form is not None and not arguments.dry_run:
        folder = _report_folder(arguments.report)
    if folder is not None:
        added |= _sources(folder, handover, environ)
    if arguments.dry_run:
        for name, value in sorted(added.items()):
            say(f"{name}={value}")
        return 0
    words, more = _forwarded(command, tuple(sorted(added)), environ)
    environ |= added | more
    if folder is None or offer is None or handover.form is None:
        _become(words, environ)
    from ncclt.cli.run_report import run_and_attest

    where = {"server": server, "storage": storage}
    try:
        return run_and_attest(words, environ, offer, handover.form, folder=folder, timeout_s=arguments.timeout, **where)
    except UsageError as error:
        if not isinstance(error.__cause__, OSError):
            raise
        return _not_started(words, error.__cause__)


def _check(arguments: argparse.Namespace, command: Sequence[str]) -> None:
    if not command:
        raise UsageError("no command to run", hint="put it behind --: ncclt run --cluster C --model M -- torchrun ...")
    for name in ("nodes", "gpus_per_node"):
        value = getattr(arguments, name)
        if value is not None and value < 1:
            raise UsageError(f"--{name.replace('_', '-')} must be at least 1, not {value}")
    if not arguments.timeout > 0:
        raise UsageError(f"--timeout must be above 0 seconds, not {arguments.timeout:g}")
    if arguments.nccl_version:
        NcclVersion.parse(arguments.nccl_version)  # a mistyped one is told now, and does not pass for an outage
    if not 0 <= arguments.wait <= 600:
        raise UsageError(f"--wait must be 0 to 600 seconds, not {arguments.wait:g}")
    if arguments.policy is not None and arguments.shared is not None:
        raise UsageError("--policy is a decision already: --shared has nothing to decide", hint="leave one of them out")
    if arguments.policy is not None and arguments.no_plugin:
        raise UsageError("--policy is a table for the plugin", hint="leave --no-plugin out")


def _decided(
    arguments: argparse.Namespace,
    command: Sequence[str],
    plugin: Path | None,
    *,
    cluster: str,
    ask: Callable[[], OfferTexts],
) -> tuple[Offer | None, Handover]:
    """Return what the job is given: what its processes agreed on, or what this one finds."""
    shared = _shared(arguments)
    if shared is not None:
        from ncclt.cli.run_decision import agree, deciding_job

        job = deciding_job(arguments, command, os.environ)
        if job is not None:

            def plan(offer: Offer | None, form: Form | None) -> Handover:
                return _handover(arguments, command, offer, None if form is Form.VARIABLES else plugin)

            question = f"{arguments.model} on {cluster}"
            for name in ("nodes", "gpus_per_node", "nccl_version"):
                value = getattr(arguments, name)
                question += "" if value is None else f", {name.replace('_', ' ')} {value}"
            return agree(arguments, shared, job, question=question, ask=ask, plan=plan)
    offer = _offer(arguments, ask)
    if shared is not None and offer is not None and not is_one_of_several(command, os.environ):
        from ncclt.job import nodes_of

        if max(offer.nodes, nodes_of(command, os.environ, arguments.nodes)) > 1 and not starts_others(command):
            say("ncclt: taken for the only process that decides for its job; if every node runs this, give --job NAME")
    if offer is None and arguments.nodes != 1 and is_one_of_several(command, os.environ):
        say(
            "ncclt: if other nodes of this job did get a recommendation, ranks disagree and NCCL can hang: "
            "--shared FOLDER, --fallback fail, or --policy FILE on a shared file system, is the same for all"
        )
    return offer, _handover(arguments, command, offer, plugin)


def _shared(arguments: argparse.Namespace) -> Path | None:
    """Return the folder in which the job decides once; a table that is named is a decision already."""
    named: Path | None = arguments.shared
    if named is None and arguments.policy is None and os.environ.get("NCCLT_SHARED"):
        named = Path(os.environ["NCCLT_SHARED"])
    return named


def _offer(arguments: argparse.Namespace, ask: Callable[[], OfferTexts]) -> Offer | None:
    """Return what there is for the job; None = nothing, which was said. Only --fallback fail lets that stop it."""
    try:
        return offer_from_table(arguments.policy.absolute()) if arguments.policy is not None else ask().offer()
    except NccltError as error:
        if arguments.policy is not None or arguments.fallback == "fail" or arguments.debug:
            raise
        say(f"ncclt: {error.message}{f' ({error.hint})' if error.hint else ''}")
        return None


def _handover(
    arguments: argparse.Namespace, command: Sequence[str], offer: Offer | None, plugin: Path | None
) -> Handover:
    if offer is None:
        return Handover(notes=("nothing is set: NCCL's own choice stays",))
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
    # The other nodes may well use theirs. With --shared it is compared with the decision; else nobody would notice.
    if several and place is None:
        return plan(plugin, _own_table(offer.table))
    if several and _shared(arguments) is None:
        raise UsageError(
            f"the other nodes of this job may use the table, and this one lacks {folder}",
            hint="ranks that disagree hang or corrupt data, so this process does not start",
        )
    return plan(None, None)


def _own_table(text: str) -> Path:
    """Put a table where this node alone reads it, which is enough where each has its own."""
    import tempfile

    try:
        path = table_path(Path(tempfile.mkdtemp(prefix="ncclt-table-")), text)
        write_table(path, text)
    except OSError as error:
        raise UsageError(
            f"the other nodes of this job may use the table, and here it can be written nowhere: {error.strerror}",
            hint="ranks that disagree hang or corrupt data, so this process does not start; see TMPDIR",
        ) from error
    return path


def _report_folder(base: Path) -> Path | None:
    """Make the folder of this start; None = the disk is full, which is said, and is no reason not to train."""
    import tempfile

    try:
        base.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix="ncclt-run-", dir=base.absolute()))
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            say(f"ncclt: no reports are kept: nothing can be written to {base}: {error.strerror}")
            return None
        raise UsageError(
            f"cannot write to {base}: {error.strerror}", hint="name a folder that all nodes share with --report"
        ) from error


def _sources(folder: Path, handover: Handover, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables by which the job tells what it used: the plugin's report, else NCCL's log."""
    if "NCCLT_POLICY" in dict(handover.set_env):
        return {"NCCLT_PLUGIN_REPORT": str(folder)}
    if "NCCL_DEBUG" in environ:
        say("ncclt: your NCCL_DEBUG stays, so no log is kept: `ncclt attest` reads yours, if it has TUNING lines")
        return {}
    return {
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,ENV,TUNING",
        # NCCL puts in host and process; two % are one to it (src/debug.cc).
        "NCCL_DEBUG_FILE": f"{str(folder).replace('%', '%%')}/nccl.%h.%p.log",
    }


def _forwarded(
    command: list[str], names: tuple[str, ...], environ: Mapping[str, str]
) -> tuple[list[str], dict[str, str]]:
    """Return the command, told to hand the variables on where its launcher hands on none by itself: Open MPI."""
    if not names or Path(command[0]).name not in ("mpirun", "mpiexec", "orterun", "prterun"):
        return command, {}
    from ncclt.recording.launchers import forwarded, is_open_mpi

    words, more = forwarded(tuple(command), names, environ=environ, open_mpi=is_open_mpi(command[0], environ=environ))
    return list(words), more


def _become(command: Sequence[str], environ: Mapping[str, str]) -> NoReturn:
    """Replace this process by the command."""
    # Python itself ignores these two, and a program that is started inherits that.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execvpe(command[0], list(command), dict(environ))  # noqa: S606 -- no shell is wanted
    except OSError as error:
        sys.exit(_not_started(command, error))


def _not_started(command: Sequence[str], error: OSError) -> int:
    say(f"ncclt: cannot start {command[0]}: {error.strerror}")
    return _NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_EXECUTABLE
