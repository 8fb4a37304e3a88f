"""`ncclt env`: print the proven environment of one workload on one cluster, for a launcher."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from ncclt.cli.configuration import lookup
from ncclt.cli.job_request import add_differences, add_limits, allowed_differences, job_request
from ncclt.cli.output import report, say
from ncclt.core.recommendation import Request
from ncclt.deliver.job_info import (
    JobInfo,
    detect_fabrics,
    detect_gpus,
    is_started_on_every_node,
    read_shape,
    read_variables,
)
from ncclt.errors import NccltError, NoRecommendationError, UsageError, as_ncclt_error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ncclt.deliver.answer import Answer

_FOR_THIS_JOB = ("export", "mpirun-x", "docker-env", "pyxis")
"""Formats that a job's own script uses at once; the others are files for later jobs."""

_DESCRIPTION = """\
Print the environment that was proven for a workload on a cluster, and nothing else.

  eval "$(ncclt env --cluster leonardo --model bert --nodes 2 --gpus-per-node 4 --nccl-version 2.22.3)"

Only what was measured for the job's nodes, GPUs per node and NCCL version is printed; a result that was recorded
elsewhere, simulated, or measured for a similar job takes --allow. What its options leave out is
taken from the job: from variables of torchrun, mpirun and Slurm, and the NCCL version from the nvidia-nccl-cu12 or
-cu13 of the torchrun or python on PATH, else from NCCL_VERSION in NVIDIA's images. If anything stays unknown, the error
lists what was published. What a job's script uses at once (export, mpirun-x, docker-env, pyxis; without --output) is
not printed where its variables, GPUs or fabric differ from the measured job. See docs/trainer/run.md.

Formats for variables: export, dotenv, json, nccl-conf, slurm-taskprolog, pyxis, mpirun-x, docker-env, configmap,
trainjob-env and cloudai; for the per-size policy: tuner-csv, nvidia-csv, rccl-csv and ncclx.
How to use each: docs/reference/formats.md.

On failure stdout stays empty. Exit codes: 2 = wrong usage, 3 = nothing that fits was published, 69 = store or server
unreachable.
"""


def named_path(text: str) -> Path:
    """Return a path that an option names; the empty one of an unset variable would mean the working folder."""
    if not text:
        raise argparse.ArgumentTypeError("the path is empty")
    return Path(text)


class Options(argparse.ArgumentParser):
    """The parser of a command; invalid options end in our usual error, without argparse's usage text."""

    def error(self, message: str) -> NoReturn:
        """Raise the error for wrong usage."""
        hint = f"`{self.prog} --help` shows what it takes"
        self.exit(report(UsageError(message.removeprefix("argument "), hint=hint)))


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command's options."""
    made = Options(
        prog="ncclt env",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    made.add_argument("--cluster", help="name of the cluster [NCCLT_CLUSTER]")
    made.add_argument("--model", required=True, help="name of the workload")
    made.add_argument("--nodes", type=int, help="nodes of the job; default: from its launcher")
    made.add_argument("--gpus-per-node", type=int, help="GPUs per node of the job, likewise")
    made.add_argument("--nccl-version", help="NCCL version of the job, likewise")
    add_limits(made)
    add_differences(made)
    made.add_argument("--format", default="export", help="how to write it, see above (default export)")
    made.add_argument("--shell", default="bash", help="export: bash (default; also for sh and zsh), fish or csh")
    made.add_argument("--unset", action="store_true", help="export: remove exactly what the same command sets")
    made.add_argument("--channels", type=int, help="nvidia-csv: channels where the policy leaves them to NCCL")
    made.add_argument(
        "--policy-dir",
        type=named_path,
        metavar="FOLDER",
        help="slurm-taskprolog: hand over the table with the plugin, from this folder that all nodes share",
    )
    made.add_argument(
        "--report",
        type=named_path,
        metavar="FOLDER",
        help="slurm-taskprolog --policy-dir: keep the plugin's reports there",
    )
    made.add_argument(
        "--all-users",
        action="store_true",
        help="slurm-taskprolog: for the jobs of all users, as in slurm.conf; else for yours alone",
    )
    made.add_argument("--output", type=named_path, metavar="FILE", help="write the text there, whole or not at all")
    made.add_argument("--server", help="fetch from this ncclt server instead of the local store [NCCLT_SERVER]")
    made.add_argument("--storage", help="database URL of the local store [NCCLT_STORAGE]")
    made.add_argument("--timeout", type=float, default=5.0, help="seconds to wait for the server (default 5)")
    made.add_argument(
        "--fallback",
        choices=("none", "cached"),
        default="none",
        help="when the server does not answer: none = fail (default), cached = its last good answer, at most 30 days "
        "old [NCCLT_CACHE_DAYS]",
    )
    made.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return made


def main(argv: Sequence[str]) -> int:
    """Print the environment and return the exit code."""
    arguments = parser().parse_args(argv)
    try:
        text = _text(arguments)
        _say_remarks(text, "warning")
        if arguments.output:
            write_whole(arguments.output, text, option="--output")
        else:
            sys.stdout.write(text)
    except (NccltError, ModuleNotFoundError) as error:
        if arguments.debug:
            raise
        return report(as_ncclt_error(error))
    return 0


def _text(arguments: argparse.Namespace) -> str:
    cluster = arguments.cluster or lookup("cluster").value
    if not cluster:
        raise UsageError("--cluster is needed", hint="or set NCCLT_CLUSTER, or `cluster` in ncclt.toml")
    for name in ("nodes", "gpus_per_node"):
        value = getattr(arguments, name)
        if value is not None and value < 1:
            raise UsageError(f"--{name.replace('_', '-')} must be at least 1, not {value}")
    if not arguments.timeout > 0:
        raise UsageError(f"--timeout must be above 0 seconds, not {arguments.timeout:g}")
    server, storage = source(arguments)
    shape = read_shape((), os.environ, nodes=arguments.nodes, gpus_per_node=arguments.gpus_per_node)
    with job_request(arguments, JobInfo(environ=os.environ, shape=shape), cluster) as request:
        if arguments.output is not None or arguments.format == "slurm-taskprolog":
            request = replace(request, job="")  # a file is for later jobs too, and a roll-out decides for each of them
        if arguments.format == "slurm-taskprolog":
            from ncclt.cli.env_prolog import prolog

            return prolog(arguments, request, server, storage)
        if arguments.policy_dir is not None or arguments.report is not None or arguments.all_users:
            raise UsageError("--policy-dir, --report and --all-users need --format slurm-taskprolog")
        return _fetch(arguments, request, server) if server else _render_stored(arguments, request, storage)


def source(
    arguments: argparse.Namespace, *, warn: Callable[[str], None] | None = None
) -> tuple[str | None, str | None]:
    """Return server and storage, one of them None: the more direct setting counts, then the server.

    A server that comes from a file is named on stderr, since a file in the working folder then decides about the job.

    Args:
        arguments: with server and storage.
        warn: as for `lookup`.
    """
    if arguments.server and arguments.storage:
        raise UsageError("--server and --storage cannot be combined", hint="give one of them")
    if arguments.server or arguments.storage:
        return arguments.server, arguments.storage
    if os.environ.get("NCCLT_STORAGE") and not os.environ.get("NCCLT_SERVER"):
        return None, os.environ["NCCLT_STORAGE"]
    server = lookup("server", warn=warn)
    if not server.value:
        return None, lookup("storage", warn=warn).value
    if not server.origin.startswith("NCCLT_"):
        say(f"ncclt: the server {server.value!r} is named by {server.origin}")
    return server.value, None


def _render_stored(arguments: argparse.Namespace, request: Request, storage: str | None) -> str:
    from ncclt.deliver.answer import answer_from_recommendation
    from ncclt.deliver.render.formats import check_form, render
    from ncclt.deliver.variant import issue_ticket, serve_from_store

    form = {"shell": arguments.shell, "unset": arguments.unset, "channels": arguments.channels}
    check_form(arguments.format, **form)
    answer = serve_from_store(storage, request)
    if _is_for_this_job(arguments):
        _compare(arguments, answer_from_recommendation(answer.recommendation))
    said = answer.to_document() | (issue_ticket(storage, answer, request.job) if arguments.format == "json" else {})
    found = answer.recommendation
    if found.simulated:
        say(f"ncclt: SIMULATED: {found.model} was tuned on a model of {request.cluster}; nothing was measured")
    elif found.label:
        say(f"ncclt: {found.label}: {found.model} was tuned on these times; nothing was launched here")
    return render(
        found,
        format=arguments.format,
        **form,
        warn=lambda remark: say(f"ncclt: {remark}"),
        said=said,
    )


def _fetch(arguments: argparse.Namespace, request: Request, server: str) -> str:
    from ncclt.client.answer import form_of
    from ncclt.deliver.answer import answer_from_json, cache_options, fetch_for_request
    from ncclt.deliver.render.formats import check_form, render_variables

    form: dict[str, Any] = {"shell": arguments.shell, "unset": arguments.unset, "channels": arguments.channels}
    is_for_this_job = _is_for_this_job(arguments)
    if is_for_this_job:
        check_form(arguments.format, **form)
    reply = fetch_for_request(
        request,
        server,
        timeout_s=arguments.timeout,
        fallback=arguments.fallback,
        **({"format": "json"} if is_for_this_job else {"format": arguments.format, **form}),
        **(cache_options() if arguments.fallback == "cached" else {}),
    )
    if reply.warning:
        say(f"ncclt: {reply.warning}")
    text = reply.text
    if is_for_this_job:
        answer = answer_from_json(text)
        _compare(arguments, answer)
        text = render_variables(answer.document, form=form_of(arguments.format, arguments.shell, arguments.unset))
    _say_remarks(text, "SIMULATED", "recorded")
    return text


def _is_for_this_job(arguments: argparse.Namespace) -> bool:
    return arguments.format in _FOR_THIS_JOB and arguments.output is None and not arguments.unset


def _compare(arguments: argparse.Namespace, answer: Answer) -> None:
    """Refuse an answer for another job than the one whose script this process runs in.

    Raises:
        NoRecommendationError: variables, GPUs or fabric differ from the measured job.
    """
    from ncclt.deliver.job_plan import compare_with_measured

    job = JobInfo(environ=os.environ, fabrics=detect_fabrics(), variables=read_variables((), os.environ))
    # A node that only starts the others needs no GPU.
    starts_ranks = is_started_on_every_node((), os.environ) and not job.is_batch_script
    job = replace(job, gpus=detect_gpus(os.environ) or (() if starts_ranks else None))
    refused, accepted = compare_with_measured(answer, job, allowed=allowed_differences(arguments.allow_difference))
    if refused:
        raise NoRecommendationError(
            f"this job differs from the measured one: {refused}",
            hint="remove the difference, or accept it with --allow-difference NAME; --output writes for other jobs",
        )
    if accepted:
        say(f"ncclt: accepted differences from the measured job: {accepted}")


def _say_remarks(text: str, *kinds: str) -> None:
    """Repeat on stderr the comments that begin like this: `eval`, a launcher or a cluster hides them."""
    for line in text.splitlines():
        if line.startswith(tuple(f"# {kind}" for kind in kinds)):
            say(f"ncclt: {line[2:]}")


def write_whole(path: Path, text: str, *, option: str) -> None:
    """Write the text atomically, readable by all; a script is made executable.

    Raises:
        UsageError: the file cannot be written.
    """
    import tempfile

    try:
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8", newline="\n") as file:
                file.write(text)
                os.fchmod(file.fileno(), 0o755 if text.startswith("#!") else 0o644)
            Path(name).replace(path)
        except OSError:
            Path(name).unlink()
            raise
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}", hint=f"give another {option}") from error
