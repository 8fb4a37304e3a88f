"""`ncclt run`: start a job with what was proven for it, and say afterwards whether it took effect."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from ncclt.cli.configuration import lookup
from ncclt.cli.edge import report, say
from ncclt.cli.env import source
from ncclt.core.version import NcclVersion
from ncclt.delivery import (
    Handover,
    Offer,
    is_one_of_several,
    offer_from_documents,
    offer_from_table,
    plan_handover,
    table_path,
    with_table_text,
    write_table,
)
from ncclt.errors import NccltError, NoRecommendationError, ServerError, StaleRecommendationError, UsageError
from ncclt.plugin import find

_DESCRIPTION = """\
Start a training with what was proven for it: the per-size table where the tuner plugin is there, else plain variables.

  torchrun on each node:   ncclt run --cluster leonardo --model bert --nodes 2 -- torchrun ... train.py
  srun or mpirun:          ncclt run --cluster ... --model ... --policy-dir /shared/folder -- srun ... train.py

Your own NCCL_* variables win. A server that is away never stops the training, unless --fallback fail says so.
The exit code is that of the command; 2 = wrong usage, 126 or 127 = the command cannot be started.
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
    offer = _offer(arguments, cluster, server, storage, with_table=plugin is not None)
    if offer is None and arguments.nodes != 1 and is_one_of_several(command, os.environ):
        say(
            "ncclt: if other nodes of this job did get a recommendation, ranks disagree and NCCL can hang: "
            "--fallback fail, or --policy FILE on a shared file system, is the same for all"
        )
    handover = _handover(arguments, command, offer, plugin)
    for note in handover.notes:
        say(f"ncclt: {note}")
    environ = {name: value for name, value in os.environ.items() if name not in handover.unset_env}
    added = dict(handover.set_env)
    folder = None
    if arguments.report is not None and handover.form is not None and not arguments.dry_run:
        folder = _report_folder(arguments.report)
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

    return run_and_attest(
        words, environ, offer, handover.form, folder=folder, server=server, storage=storage, timeout_s=arguments.timeout
    )


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
    if arguments.policy is not None and arguments.no_plugin:
        raise UsageError("--policy is a table for the plugin", hint="leave --no-plugin out")


def _offer(
    arguments: argparse.Namespace, cluster: str, server: str | None, storage: str | None, *, with_table: bool
) -> Offer | None:
    """Return what there is for the job; None = nothing, which was said. Only --fallback fail lets that stop it."""
    try:
        if arguments.policy is not None:
            return offer_from_table(arguments.policy.absolute())
        if server:
            return _fetched(arguments, cluster, server, with_table=with_table)
        return _stored(arguments, cluster, storage, with_table=with_table)
    except NccltError as error:
        if arguments.policy is not None or arguments.fallback == "fail" or arguments.debug:
            raise
        say(f"ncclt: {error.message}{f' ({error.hint})' if error.hint else ''}")
        return None


def _fetched(arguments: argparse.Namespace, cluster: str, server: str, *, with_table: bool) -> Offer:
    from ncclt.client import ClientError, fetch_env

    def fetch(format: str) -> str:
        fetched = fetch_env(
            server,
            cluster=cluster,
            model=arguments.model,
            nodes=arguments.nodes,
            gpus_per_node=arguments.gpus_per_node,
            nccl_version=arguments.nccl_version,
            format=format,
            timeout_s=arguments.timeout,
            cache_dir=_cache() / "env",
            fallback="cached" if arguments.fallback == "cached" else "none",
            api_key=os.environ.get("NCCLT_API_KEY"),
        )
        if fetched.warning:
            say(f"ncclt: {fetched.warning}")
        return fetched.text

    try:
        offer = offer_from_documents(fetch("json"))
        return with_table_text(offer, fetch("tuner-csv")) if with_table and offer.rules.rules else offer
    except ClientError as error:
        kind = {404: NoRecommendationError, 410: StaleRecommendationError}.get(error.status or 0, ServerError)
        raise kind(error.message, hint=error.hint) from error


def _stored(arguments: argparse.Namespace, cluster: str, storage: str | None, *, with_table: bool) -> Offer:
    from ncclt.core.recommendation import Request, select
    from ncclt.core.render import render
    from ncclt.store import published

    wanted = arguments.nccl_version
    request = Request(
        cluster=cluster,
        model=arguments.model,
        nodes=arguments.nodes,
        gpus_per_node=arguments.gpus_per_node,
        nccl_version=str(NcclVersion.parse(wanted)) if wanted else None,
    )
    found = select(published(storage, cluster=cluster, model=arguments.model), request)
    version = NcclVersion.parse(found.fingerprint.nccl_version)
    offer = offer_from_documents(render(found, format="json", version=version))
    if not (with_table and offer.rules.rules):
        return offer
    return with_table_text(offer, render(found, format="tuner-csv", version=version))


def _handover(
    arguments: argparse.Namespace, command: Sequence[str], offer: Offer | None, plugin: Path | None
) -> Handover:
    if offer is None:
        return Handover(notes=("nothing is set: NCCL's own choice stays",))
    file = arguments.policy and arguments.policy.absolute()
    if file is None and offer.table:
        file = table_path(arguments.policy_dir or _cache() / "tables", offer.table)

    def plan(plugin: Path | None) -> Handover:
        return plan_handover(
            offer,
            environ=os.environ,
            argv=command,
            plugin=plugin,
            table_file=file,
            shared=arguments.policy is not None or arguments.policy_dir is not None,
            override=arguments.override,
        )

    handover = plan(plugin)
    if arguments.policy is None and not arguments.dry_run and "NCCLT_POLICY" in dict(handover.set_env):
        try:
            write_table(file, offer.table)
        except OSError as error:
            if arguments.fallback == "fail":
                raise UsageError(f"the table cannot be written to {file}: {error.strerror}") from error
            say(f"ncclt: the table cannot be written to {file.parent}: {error.strerror}")
            handover = plan(None)
    return handover


def _report_folder(base: Path) -> Path:
    import tempfile

    try:
        base.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix="ncclt-run-", dir=base.absolute()))
    except OSError as error:
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
        "NCCL_DEBUG_FILE": f"{folder}/nccl.%h.%p.log",  # NCCL puts in host and process
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
        say(f"ncclt: cannot start {command[0]}: {error.strerror}")
        sys.exit(_NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_EXECUTABLE)


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or ""
    return (Path(base) if Path(base).is_absolute() else Path.home() / ".cache") / "ncclt"
