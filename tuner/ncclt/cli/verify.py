"""`ncclt verify`: the step time of a real training under two environments, or of two commands."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ncclt.cli.configuration import storage_url
from ncclt.cli.exits import EXIT_INTERRUPTED, interruptible
from ncclt.cli.options import AsJson, Fields, ModelFilter, Quiet, spread
from ncclt.cli.render import Column, note, print_document, print_json, print_table, print_text, say
from ncclt.cli.stdio import Styled
from ncclt.core.cluster import hash_site
from ncclt.core.nccl_version import NcclVersion
from ncclt.core.option import Group, Option
from ncclt.core.plural import count_noun
from ncclt.core.recommendation import Recommendation, Request
from ncclt.core.verification import PERCENTILES, Side, StepLaunch, Variables, Verification, sorted_variables
from ncclt.errors import UsageError
from ncclt.launch.launcher import Launcher, LaunchResult
from ncclt.launch.local import LocalLauncher
from ncclt.launch.process.session import KEEP_BYTES as ALL_OUTPUT
from ncclt.measure.redact import variables_without_secrets, words_without_secrets
from ncclt.measure.target import Target, gpus_visible
from ncclt.nccl.variables import site_variables, split_variables
from ncclt.prove.comparison import Comparison
from ncclt.store import chosen, open_store, open_to_read
from ncclt.store.clock import utc_now

if TYPE_CHECKING:
    from ncclt.prove.step_times import VerifyRequest
    from ncclt.store import Store

app = typer.Typer()

PLAN_SCHEMA = 1
"""Version of the document that `verify --dry-run --json` prints."""

KEEP_BYTES = 256 * 1024
"""Kept of each output of a launch where it is not shown: its last lines, should it fail."""


_OF_THE_JOB = {
    "cluster": Option("Name of the cluster.", envvar="NCCLT_CLUSTER"),
    "nccl_version": Option("NCCL version of the job.", group=Group.WHERE),
}
"""Options of the training that is launched, in place of trials."""

_SAME_WORK = (
    "step times say which command is faster only if both do the same work in a step, the same samples above all"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SideOptions:
    """Two sides to compare instead of a recommendation; the `Option` of each field describes it."""

    env: Annotated[tuple[str, ...], Option("NAME=VALUE to test instead of a recommendation; repeatable.")] = ()
    base: Annotated[tuple[str, ...], Option("NAME=VALUE of the baseline; repeatable; default: none.")] = ()
    against: Annotated[str | None, Option("Command of the baseline, quoted as one text.")] = None


@app.command(context_settings={"allow_interspersed_args": False})
@spread
def verify(
    command: Annotated[
        list[str] | None, typer.Argument(help="Command of the training, such as: torchrun ... train.py")
    ] = None,
    model: ModelFilter = None,
    recommendation: Annotated[str | None, Option("Id of the revision to test, such as a candidate.")] = None,
    *,
    target: Annotated[Target, Fields("cluster nodes gpus_per_node nccl_version", _OF_THE_JOB)],
    sides: SideOptions,
    how: Comparison,
    dry_run: Annotated[bool, Option("Print the launches; run and store nothing.")] = False,
    verbose: Annotated[bool, Option("Print the output of each launch.", group=Group.LAUNCH)] = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """A/B-test step times of a training with a recommendation.

    The training needs no change: it gets the settings that `ncclt run` would give it. --env and --base compare two
    environments instead, --against two commands. Launches come in pairs in random order, until the verdict is certain.
    Ctrl-C ends the running launch; with a recommendation the others are saved, and the same command resumes.
    """
    storage = storage_url()
    from ncclt.prove.tuned_arm import prepare_comparison, require_measurable

    argv, has_sides = tuple(command or ()), sides != SideOptions()
    if recommendation and has_sides:
        raise UsageError("--recommendation cannot be combined with --env, --base or --against", hint="give one of them")
    published = None if has_sides else _find_recommendation(model or "", target, storage, id=recommendation)
    if published is not None:
        require_measurable(published, argv, gpus_visible=gpus_visible())
    if not argv:
        raise UsageError("give the training's command after --", hint="for example: -- torchrun ... train.py")
    launcher = LocalLauncher(
        keep_env=split_variables(os.environ).of_trials, keep_bytes=ALL_OUTPUT if verbose else KEEP_BYTES
    )
    with ExitStack() as stack:
        if published is None:
            request = _build_user_request(argv, sides, how, launcher)
            request = replace(request, cluster=target.cluster or "", model=model or "")
        else:
            request = stack.enter_context(
                prepare_comparison(published, argv, how=how, launcher=launcher, environ=os.environ, planned=dry_run)
            )
        if dry_run:
            _print_plan(request, as_json=as_json)
            return
        with open_store(storage) as store:
            verification = compare(request, launcher, store, hidden=quiet or as_json, verbose=verbose)
            location = store.shown
    if as_json:
        print_json(verification)
    else:
        print_verification(verification, location, quiet=quiet)


def _build_user_request(
    argv: tuple[str, ...], sides: SideOptions, how: Comparison, launcher: Launcher
) -> VerifyRequest:
    """Return the comparison of two sides; the user's own tuning is part of both, and shown and kept as such."""
    own = split_variables(os.environ).tuning
    request = build_request(
        argv,
        split_command(sides.against),
        base_env=parse_variables("--base", sides.base, own=own),
        tuned_env=parse_variables("--env", sides.env, own=own),
        how=how,
        launcher=launcher,
    )
    return replace(request, notes=(_SAME_WORK,) if request.base_argv else ())


def build_request(
    argv: tuple[str, ...],
    base_argv: tuple[str, ...],
    *,
    base_env: Variables,
    tuned_env: Variables,
    how: Comparison,
    launcher: Launcher,
) -> VerifyRequest:
    """Return the comparison of two commands or environments as a user gives them.

    Args:
        argv: command of the side that is tested.
        base_argv: command of the baseline; empty = the same.
        base_env, tuned_env: variables of both sides.
        how: number, length and limits of the launches.
        launcher: of both; neither side inherits the tuning variables of this shell, but it may set them itself.
    """
    from ncclt.prove.step_times import VerifyRequest, open_mpi_sides

    own = split_variables(os.environ).tuning
    return VerifyRequest(
        argv=argv,
        base_argv=base_argv,
        base_env=base_env,
        tuned_env=tuned_env,
        removed_env=launcher.plan(argv, variables=own, timeout_s=how.timeout_s).unset_env,
        how=how,
        open_mpi=open_mpi_sides(argv, base_argv, environ=os.environ),
    )


def compare(
    request: VerifyRequest,
    launcher: Launcher,
    store: Store,
    *,
    hidden: bool,
    verbose: bool = False,
) -> Verification:
    """Launch both sides interleaved, show each launch on stderr, and store the verdict; resume a stored comparison.

    Args:
        verbose: show each launch's output.

    Raises:
        Exit: interrupted, with the exit code for it.
    """
    from ncclt.prove.step_times import InterruptedComparisonError, find_open
    from ncclt.prove.step_times import verify as run

    names = _side_names(bool(request.base_argv))

    def watch(launch: StepLaunch, result: LaunchResult) -> None:
        if verbose:
            Styled(sys.stderr).write(result.stdout + result.stderr)  # as the job prints it
        if not hidden:
            took = f"{launch.time_us / 1e3:.2f} ms per step" if launch.time_us and not launch.failure else "failed"
            say(f"ncclt: launch {launch.order + 1} of up to {len(request.order)}, {names[launch.side]}: {took}")

    with interruptible():
        # A store that cannot be written is an error before the training runs, not an hour later.
        store.require_writable()
        if not hidden:
            for name, side in describe_sides(request, names).items():
                say(f"ncclt: {name}: {side}")
            if request.removed_env:
                say(f"ncclt: removed from both sides: {', '.join(request.removed_env)}")
            for sentence in request.notes:
                say(f"ncclt: {sentence}")
        earlier = find_open(store.records.verifications(recommendation=request.recommendation), request)
        if earlier and not hidden:
            say(f"ncclt: resuming after {count_noun(len(earlier), 'stored launch', 'stored launches')}")
        try:
            verification = run(request, launcher, environ=os.environ, watch=watch, now=utc_now, earlier=earlier)
        except InterruptedComparisonError as error:
            launches = "nothing saved"
            if error.done is not None and request.recommendation:
                store.records.add_verification(error.done)
                launches = (
                    f"{count_noun(len(error.done.launches), 'launch', 'launches')} saved; the same command resumes"
                )
            say(f"ncclt: interrupted: the running launch was ended; {launches}")
            raise typer.Exit(EXIT_INTERRUPTED) from None
        store.records.add_verification(verification)
    return verification


def split_command(command: str | None) -> tuple[str, ...]:
    """Return the words of the command of --against; empty where it is left out.

    Raises:
        UsageError: the text is no command.
    """
    if command is None:
        return ()
    try:
        words = tuple(shlex.split(command))
    except ValueError as error:
        raise UsageError(f"--against {command!r} cannot be read: {error}", hint="quote it as a shell would") from error
    if not words:
        raise UsageError("--against needs a command", hint="for example --against 'torchrun ... train.py --bucket 50'")
    return words


def _find_recommendation(model: str, target: Target, storage: str | None, *, id: str | None) -> Recommendation:

    if id:
        with open_to_read(storage) as store:
            return store.recommendations.get(id)
    if not model or not target.cluster:
        raise UsageError(
            "--model NAME and --cluster NAME are missing",
            hint="name what to verify, or compare environments with --env and --base, or commands with --against",
        )
    wanted = Request(
        cluster=target.cluster,
        model=model,
        nodes=target.nodes,
        gpus_per_node=target.gpus_per_node,
        nccl_version=str(NcclVersion.parse(target.nccl_version)) if target.nccl_version else None,
        site=hash_site(site_variables(os.environ)),
    )
    return chosen(storage, wanted, partly=True)  # the launches measure it, and change nothing else


def parse_variables(option: str, texts: Sequence[str], *, own: Mapping[str, str]) -> Variables:
    """Return the variables of NAME=VALUE options, added to a side's own.

    Raises:
        UsageError: a text is not NAME=VALUE.
    """
    variables = dict(own)
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip() or "\0" in text:
            raise UsageError(f"{option} {text!r} is not NAME=VALUE", hint=f"for example {option} NCCL_ALGO=Ring")
        variables[name.strip()] = value
    return sorted_variables(variables)


def format_variables(variables: Variables) -> str:
    """Return variables as a shell would set them, without secrets, or that there are none."""
    shown = variables_without_secrets(variables)
    return " ".join(f"{name}={shlex.quote(value)}" for name, value in shown) or "no variables set"


def _side_names(are_commands: bool) -> dict[Side, str]:

    names = ("against", "command") if are_commands else (side.value for side in Side)
    return dict(zip(Side, names, strict=True))


def describe_sides(request: VerifyRequest, names: Mapping[Side, str]) -> dict[str, str]:
    """Describe each side by its variables, and by its command where there are two, without secrets."""
    sides = {}
    for side, name in names.items():
        argv, variables = request.side(side)
        text = format_variables(variables)
        command = shlex.join(words_without_secrets(argv, environ={**os.environ, **dict(variables)}))
        sides[name] = f"{command} ({text})" if request.base_argv else text
    return sides


def _print_plan(request: VerifyRequest, *, as_json: bool) -> None:
    document: dict[str, Any] = {
        "schema": PLAN_SCHEMA,
        "argv": list(words_without_secrets(request.argv)),
        **({"base_argv": list(words_without_secrets(request.base_argv))} if request.base_argv else {}),
        "order": [side.value for side in request.order],
        "base_env": dict(variables_without_secrets(request.base_env)),
        "tuned_env": dict(variables_without_secrets(request.tuned_env)),
        "removed_env": list(request.removed_env),
        "recommendation": request.recommendation,
        "warmup": request.how.warmup,
        "steps": request.how.steps,
        "notes": list(request.notes),
    }
    if as_json:
        print_json(document)
    else:
        print_document(document)
        note(f"at most {count_noun(len(request.order), 'launch', 'launches')}, in this order")


def print_verification(verification: Verification, location: str, *, quiet: bool) -> None:
    """Print the step times of both sides, the verdict, and the failures and notes on stderr."""
    names, launches = _side_names(bool(verification.base_argv)), verification.launches
    rows: list[list[object]] = []
    for side in Side:
        times: list[float | None] = [time_us / 1e3 for time_us in verification.percentiles(side).values()]
        count = sum(launch.side is side for launch in launches)
        rows.append([names[side], count, len(verification.step_us(side)), *(times or [None] * len(PERCENTILES))])
    percentiles = [Column(f"p{percent} ms") for percent in PERCENTILES]
    print_table(rows, [Column("side"), Column("launches", drop=1), Column("steps"), *percentiles])
    print_text(f"verdict: {verification.word}: {verification.verdict.reason}")
    for launch in launches:
        if launch.failure:
            say(f"ncclt: launch {launch.order + 1}, {names[launch.side]}, failed: {launch.failure}")
    if quiet:
        return
    for sentence in verification.notes:
        say(f"note: {sentence}")
    say(f"ncclt: stored verification {verification.id} in {location}")
