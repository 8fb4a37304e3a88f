"""`ncclt env`: print the proven environment of one workload on one cluster, for a launcher."""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from ncclt.cli.configuration import lookup, require_one_source
from ncclt.cli.exits import report
from ncclt.cli.render import say
from ncclt.core.cluster import hash_site
from ncclt.core.nccl_version import NcclVersion
from ncclt.core.recommendation import ORIGIN_WORDS, SHAPE_PARTS, Request
from ncclt.core.trial import TimesOrigin
from ncclt.deliver.job_info import (
    JobInfo,
    Sourced,
    decides_alone,
    detect_fabrics,
    detect_gpus,
    name_for_rollout,
    read_shape,
    read_site,
    read_variables,
)
from ncclt.errors import NccltError, NoRecommendationError, UsageError, as_ncclt_error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ncclt.deliver.answer import Answer, AnswerSource

_ALLOWABLE = tuple(map(str, ORIGIN_WORDS))

_FOR_THIS_JOB = ("export", "mpirun-x", "docker-env", "pyxis")
"""Formats that a job's own script uses at once; the others are files for later jobs."""

_DESCRIPTION = """\
Print validated NCCL settings for a job.

  eval "$(ncclt env --cluster leonardo --model bert --nodes 2 --gpus-per-node 4 --nccl-version 2.22.3)"

Nodes, GPUs per node and NCCL version default to those of the job: variables of torchrun, mpirun and Slurm, and the
NCCL of its Python or image. Recorded and simulated results need --allow. Settings for immediate use (export, mpirun-x,
docker-env, pyxis; without --output) are refused if variables, GPUs or fabric differ from the measured job.

Formats of variables: export, dotenv, json, nccl-conf, slurm-taskprolog, pyxis, mpirun-x, docker-env, configmap,
trainjob-env and cloudai; of the per-size policy: tuner-csv, nvidia-csv, rccl-csv and ncclx; of one process group:
pg-options (PyTorch) and megatron-yaml (Megatron-LM).
More: docs/reference/formats.md, docs/trainer/run.md.

On failure stdout stays empty. Exit codes: 2 = wrong usage, 3 = no matching result, 69 = store or server unreachable.
"""


def named_path(text: str) -> Path:
    """Return a path that an option names; the empty one of an unset variable would mean the working folder."""
    if not text:
        raise argparse.ArgumentTypeError("the path is empty")
    return Path(text)


class Options(argparse.ArgumentParser):
    """The parser of a command; invalid options end in our usual error, and --help leaves out options under headings."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(
            formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, add_help=False, **settings
        )
        self._optionals.title = "Options"
        self._shows_all = False

    def add_help_options(self) -> None:
        """Add --help and --help-all, behind the other options."""
        self.add_argument(
            "--help-all", dest="help", default=argparse.SUPPRESS, action=_HelpAll, nargs=0, help="Show all options."
        )
        self.add_argument("-h", "--help", action="help", help="Show this message and exit.")

    def format_all(self) -> str:
        """Return the help with all options."""
        self._shows_all = True
        return self.format_help()

    def format_help(self) -> str:
        """Return the help, with the options under headings only for --help-all."""
        formatter = self._get_formatter()
        formatter.add_usage(self.usage, self._actions, self._mutually_exclusive_groups)
        formatter.add_text(self.description)
        for group in self._action_groups:
            if self._shows_all or group is self._optionals:
                formatter.start_section(group.title)
                formatter.add_arguments(group._group_actions)
                formatter.end_section()
        return formatter.format_help()

    def error(self, message: str) -> NoReturn:
        """Raise the error for wrong usage."""
        hint = f"`{self.prog} --help` lists the options"
        self.exit(report(UsageError(message.removeprefix("argument "), hint=hint)))


class _HelpAll(argparse.Action):
    def __call__(self, parser: Any, *_: object) -> None:
        sys.stdout.write(parser.format_all())
        parser.exit()


def add_job(parser: Options, *, model: bool) -> None:
    """Add the options that describe the job.

    Args:
        model: --model is required.
    """
    parser.add_argument("--cluster", metavar="NAME", help="Name of the cluster. [NCCLT_CLUSTER]")
    parser.add_argument("--model", metavar="NAME", required=model, help="Name of the workload.")
    parser.add_argument("--nodes", type=int, metavar="N", help="Nodes of the job; default: those of its launcher.")
    parser.add_argument("--gpus-per-node", type=int, metavar="N", help="GPUs per node of the job, likewise.")
    parser.add_argument("--nccl-version", metavar="X.Y.Z", help="NCCL version of the job, likewise.")


def add_source_and_conditions(parser: Options) -> None:
    """Add the options that say where results are stored and which of them a job may get, and those for help."""
    add, add_condition = parser.add_argument, parser.add_argument_group("Conditions").add_argument
    add("--server", metavar="URL", help="URL of an ncclt server, instead of a store. [NCCLT_SERVER]")
    add("--storage", metavar="URL", help="Database URL of the store. [NCCLT_STORAGE]")
    allow = "Accept recorded or simulated results too; repeatable. [NCCLT_ALLOW]"
    add("--allow", action="append", choices=_ALLOWABLE, help=allow)
    add_condition("--driver", metavar="VERSION", help="Required NVIDIA driver of the measurement.")
    add_condition("--topology", metavar="HASH", help="Required topology of the measurement.")
    difference = "Accept another value of this variable, GPU, NO_GPU or FABRIC; repeatable. [NCCLT_ALLOW_DIFFERENCE]"
    add_condition("--allow-difference", action="append", metavar="NAME", default=[], help=difference)
    parser.add_help_options()


def add_server(parser: Options, *, timeout_s: float, fallbacks: Mapping[str, str]) -> argparse._ArgumentGroup:
    """Add the options about a server that answers late or not at all, and return their group.

    Args:
        timeout_s: the default.
        fallbacks: name of each fallback -> its meaning; the first one is the default.
    """
    group = parser.add_argument_group("Server")
    add = group.add_argument
    limit = f"Max seconds to wait; default: {timeout_s:g}."
    add("--timeout", type=float, default=timeout_s, metavar="SECONDS", help=limit)
    default, *_ = fallbacks
    meanings = ", ".join(f"{name} = {meaning}" for name, meaning in fallbacks.items())
    add("--fallback", choices=tuple(fallbacks), default=default, help=f"If the server is down: {meanings}.")
    return group


def check_request(arguments: argparse.Namespace) -> None:
    """Refuse invalid values of the options of a request.

    Raises:
        UsageError: one is.
    """
    for name in ("nodes", "gpus_per_node"):
        value = getattr(arguments, name)
        if value is not None and value < 1:
            raise UsageError(f"--{name.replace('_', '-')} must be at least 1, not {value}")
    if not 0 < arguments.timeout < math.inf:
        raise UsageError(f"--timeout must be above 0 seconds, not {arguments.timeout:g}")
    if arguments.nccl_version:
        NcclVersion.parse(arguments.nccl_version)  # a typo is wrong usage, not an outage


def parser() -> Options:
    """Return the parser of the command's options."""
    options = Options(
        prog="ncclt env", usage="ncclt env --cluster NAME --model NAME [options]", description=_DESCRIPTION
    )
    add_job(options, model=True)
    add = options.add_argument
    add("--format", default="export", metavar="FORMAT", help="Format, see above; default: export.")
    add("--output", type=named_path, metavar="FILE", help="Path to the file to write; default: stdout.")
    add_source_and_conditions(options)
    add = options.add_argument_group("Formats").add_argument
    add("--shell", default="bash", help="export: bash, for sh and zsh too (default), fish or csh.")
    add("--unset", action="store_true", help="export: unset the variables instead.")
    add("--channels", type=int, metavar="N", help="nvidia-csv: channels of rows that leave them to NCCL.")
    add("--group", metavar="NAME", default="", help="megatron-yaml: group, such as tp, dp_cp or ep.")
    folder: dict[str, Any] = {"type": named_path, "metavar": "FOLDER"}
    add("--policy-dir", help="slurm-taskprolog: path to a shared folder for the table.", **folder)
    add("--report", help="slurm-taskprolog: path to a folder for the plugin's reports.", **folder)
    add("--all-users", action="store_true", help="slurm-taskprolog: serve all users, as in slurm.conf.")
    add_server(options, timeout_s=5.0, fallbacks={"none": "fail (default)", "cached": "use its last answer"})
    return options


def main(argv: Sequence[str], *, debug: bool = False) -> int:
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
        if debug:
            raise
        return report(as_ncclt_error(error))
    return 0


def _text(arguments: argparse.Namespace) -> str:
    cluster = arguments.cluster or lookup("cluster").value
    if not cluster:
        raise UsageError("--cluster is needed", hint="or set NCCLT_CLUSTER, or `cluster` in ncclt.toml")
    check_request(arguments)
    source = find_source(arguments)
    job = JobInfo(
        environ=os.environ,
        shape=read_shape((), os.environ, nodes=arguments.nodes, gpus_per_node=arguments.gpus_per_node),
        site=read_site((), os.environ),
        decides_alone=decides_alone(os.environ, ()),
    )
    with job_request(arguments, job, cluster) as request:
        if arguments.output is not None or arguments.format == "slurm-taskprolog":
            request = replace(request, job="")  # a file is for later jobs too, and a roll-out decides for each of them
        if arguments.format == "slurm-taskprolog":
            from ncclt.cli.env_prolog import prolog

            options_of_form(arguments)
            return prolog(arguments, request, source)
        if arguments.policy_dir is not None or arguments.report is not None or arguments.all_users:
            raise UsageError("--policy-dir, --report and --all-users need --format slurm-taskprolog")
        if source.server:
            return _fetch(arguments, request, job, source.server)
        return _render_stored(arguments, request, job, source.storage)


def allowed_differences(accepted: Sequence[str]) -> list[str]:
    """Return the differences that --allow-difference and NCCLT_ALLOW_DIFFERENCE accept."""
    return [*accepted, *os.environ.get("NCCLT_ALLOW_DIFFERENCE", "").replace(",", " ").split()]


def with_allowed(request: Request, allow: Sequence[str] | None) -> Request:
    """Return a request with what --allow permits, else NCCLT_ALLOW.

    Raises:
        UsageError: something else is named.
    """
    words = set(allow or os.environ.get("NCCLT_ALLOW", "").replace(",", " ").split())
    if unknown := words.difference(_ALLOWABLE):
        name = "--allow" if allow else "NCCLT_ALLOW"
        raise UsageError(f"{name} is {min(unknown)!r}", hint=f"it is one or more of {', '.join(_ALLOWABLE)}")
    return replace(request, allowed=frozenset(map(TimesOrigin, words)))


@contextmanager
def job_request(arguments: argparse.Namespace, job: JobInfo, cluster: str) -> Iterator[Request]:
    """Yield the request for a job: its options, completed by what is known of it.

    Args:
        arguments: with model, nodes, gpus_per_node and nccl_version, the last three None if not given.

    Raises:
        NoRecommendationError: an option contradicts the command or its launcher; or the block raised it, to
            which the parts taken from the launcher are added.
    """
    options = {part: getattr(arguments, part) for part in SHAPE_PARTS}
    if options["nccl_version"]:
        options["nccl_version"] = str(NcclVersion.parse(options["nccl_version"]))
    for part, value in options.items():
        if value is not None and part in job.shape and job.shape[part].binding and job.shape[part].value != value:
            raise NoRecommendationError(
                f"--{part.replace('_', '-')} {value} contradicts the job: {_describe(part, job.shape[part])}",
                hint="leave the option out, or give it as the job has it",
            )
    detected = {part: job.shape[part] for part, value in options.items() if value is None and part in job.shape}
    request = Request(
        cluster=cluster,
        model=arguments.model,
        **{**options, **{part: fact.value for part, fact in detected.items()}},
        driver=arguments.driver,
        topology_hash=arguments.topology,
        site=hash_site(job.site.items(), equal_on_nodes=not job.decides_alone),
        job=name_for_rollout(job.environ, job.argv, named=getattr(arguments, "job", None), nodes=arguments.nodes),
    )
    try:
        yield with_allowed(request, arguments.allow)
    except NoRecommendationError as error:
        if not detected:
            raise
        facts = "; ".join(_describe(part, fact) for part, fact in detected.items())
        raise type(error)(f"{error.message} ({facts})", hint=error.hint, available=error.available) from error


def _describe(part: str, fact: Sourced) -> str:
    return f"{SHAPE_PARTS[part]} {fact.value} from {fact.source}"


def find_source(arguments: argparse.Namespace, *, warn: Callable[[str], None] | None = None) -> AnswerSource:
    """Return the server or the storage: the more direct setting counts, then the server.

    A server that comes from a file is named on stderr, since a file in the working folder then decides about the job.

    Args:
        warn: as for `lookup`.
    """
    from ncclt.deliver.answer import AnswerSource

    require_one_source(arguments.server, arguments.storage)
    server, storage = arguments.server, arguments.storage
    if not server and not storage and not os.environ.get("NCCLT_SERVER"):
        storage = os.environ.get("NCCLT_STORAGE")
    if not server and not storage:
        named = lookup("server", warn=warn)
        server = named.value
        if server and not named.origin.startswith("NCCLT_"):
            say(f"ncclt: the server {server!r} is named by {named.origin}")
        storage = None if server else lookup("storage", warn=warn).value
    return AnswerSource(server=server, storage=storage, timeout_s=arguments.timeout)


def _render_stored(arguments: argparse.Namespace, request: Request, job: JobInfo, storage: str | None) -> str:
    from ncclt.deliver.answer import answer_from_recommendation
    from ncclt.deliver.render.formats import render
    from ncclt.deliver.variant import serve_from_store

    form = options_of_form(arguments)
    served, ticket = serve_from_store(storage, request, with_ticket=arguments.format == "json")
    recommendation = served.recommendation
    if _is_for_this_job(arguments):
        _compare(arguments, answer_from_recommendation(recommendation), job)
    if recommendation.simulated:
        say(f"ncclt: SIMULATED: {recommendation.model} was tuned on a model of {request.cluster}; nothing was measured")
    elif label := recommendation.label:
        say(f"ncclt: {label}: {recommendation.model} was tuned on these times; nothing was launched here")
    return render(
        recommendation,
        format=arguments.format,
        **form,
        warn=lambda remark: say(f"ncclt: {remark}"),
        said=served.to_document() | ticket,
    )


def _fetch(arguments: argparse.Namespace, request: Request, job: JobInfo, server: str) -> str:
    from ncclt.client.answer import form_of
    from ncclt.deliver.answer import answer_from_json, cache_options, fetch_for_request
    from ncclt.deliver.render.formats import render_variables

    form = options_of_form(arguments)
    is_for_this_job = _is_for_this_job(arguments)
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
        _compare(arguments, answer, job)
        text = render_variables(answer.document, form=form_of(arguments.format, arguments.shell, arguments.unset))
    _say_remarks(text, "SIMULATED", "recorded")
    return text


def options_of_form(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the options of the format.

    Raises:
        UsageError: the format is unknown, does not have one of them, or lacks one.
    """
    from ncclt.deliver.render.formats import check_form

    options = {name: getattr(arguments, name) for name in ("shell", "unset", "channels", "group")}
    check_form(arguments.format, **options)
    return options


def _is_for_this_job(arguments: argparse.Namespace) -> bool:
    return arguments.format in _FOR_THIS_JOB and arguments.output is None and not arguments.unset


def _compare(arguments: argparse.Namespace, answer: Answer, job: JobInfo) -> None:
    """Refuse an answer for another job than the one whose script this process runs in.

    Raises:
        NoRecommendationError: variables, GPUs or fabric differ from the measured job.
    """
    from ncclt.deliver.job_plan import compare_with_measured

    # A node that only starts the others needs no GPU.
    starts_ranks = job.is_started_on_every_node and not job.is_batch_script
    gpus = detect_gpus(os.environ) or (() if starts_ranks else None)
    job = replace(job, gpus=gpus, fabrics=detect_fabrics(), variables=read_variables((), os.environ))
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
