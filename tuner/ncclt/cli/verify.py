"""`ncclt verify`: the step time of a real training under two environments."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ncclt.cli.options import AsJson, Quiet, Storage
from ncclt.cli.output import EXIT_INTERRUPTED, interruptible, print_json, print_table, say
from ncclt.cli.spread import Fields, spread
from ncclt.core.option import Option
from ncclt.errors import UsageError
from ncclt.measure.target import Target
from ncclt.prove.comparison import Comparison

if TYPE_CHECKING:
    from ncclt.core.recommendation import Recommendation
    from ncclt.core.verification import StepLaunch, Variables, Verification
    from ncclt.launch.launcher import LaunchResult
    from ncclt.prove.step_times import VerifyRequest

app = typer.Typer()

PLAN_SCHEMA = 1
"""Version of the document that `verify --dry-run --json` prints."""

_KEEP_BYTES = 256 * 1024
"""Kept of each output of a launch where it is not shown: its last lines, should it fail."""


_OF_THE_JOB = {
    "cluster": Option("Name of the cluster.", envvar="NCCLT_CLUSTER"),
    "nccl_version": Option("NCCL version of the job."),
    "keep_env": Option("Let NCCL_* variables of this shell reach both sides."),
}
"""Options of the training that is launched, in place of trials."""


@app.command(context_settings={"allow_interspersed_args": False})
@spread
def verify(
    command: Annotated[list[str], typer.Argument(help="The training's command, for example: torchrun ... train.py")],
    model: Annotated[str | None, typer.Option(help="Name of the workload whose recommendation is verified.")] = None,
    profile: Annotated[str | None, typer.Option(help="Same as --model.")] = None,
    *,
    target: Annotated[Target, Fields("cluster nodes gpus_per_node nccl_version env base keep_env", _OF_THE_JOB)],
    env: Annotated[
        list[str] | None,
        typer.Option(help="NAME=VALUE of the side that is judged, instead of a recommendation; repeatable."),
    ] = None,
    base: Annotated[
        list[str] | None,
        typer.Option(help="NAME=VALUE of the side that it is compared with; repeatable. Default: nothing is set."),
    ] = None,
    how: Comparison,
    storage: Storage = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be launched; run and store nothing.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Show each launch's output on stderr.")] = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Launch a training briefly and in turn without and with its recommended environment, and compare step times.

    No line of the training changes. The order A B B A ... cancels drifts; it ends when the verdict is certain.
    """
    from ncclt.launch.local import LocalLauncher
    from ncclt.launch.process.session import KEEP_BYTES
    from ncclt.profile.record.launchers import is_open_mpi
    from ncclt.prove.step_times import VerifyRequest, recommended_variables
    from ncclt.prove.step_times import verify as run
    from ncclt.store import open_store

    if model and profile:
        raise UsageError("--model and --profile mean the same", hint="give one of them")
    launcher = LocalLauncher(keep_env=target.keep_env, keep_bytes=KEEP_BYTES if verbose else _KEEP_BYTES)
    workload, own = model or profile or "", bool(env or base)
    published = None if own else _recommendation(workload, target, storage)
    request = VerifyRequest(
        argv=tuple(command),
        base_env=_variables("--base", base or []),
        tuned_env=recommended_variables(published) if published else _variables("--env", env or []),
        cluster=target.cluster or "",
        model=workload,
        recommendation=published.id if published else "",
        # Variables that neither side inherits; it may still set them itself.
        removed_env=launcher.plan(command, variables={}, timeout_s=how.timeout_s).unset_env,
        notes=_notes(published),
        how=how,
        open_mpi=is_open_mpi(command[0], environ=os.environ),
    )
    if dry_run:
        _print_plan(request, as_json=as_json)
        return
    watch = _Watch(request, hidden=quiet or as_json, verbose=verbose)
    # A store that cannot be written is an error before the training runs, not an hour later.
    with open_store(storage) as store, interruptible():
        from ncclt.store.store import utc_now

        store.require_writable()
        watch.begun()
        try:
            verification = run(request, launcher, environ=os.environ, watch=watch, now=utc_now)
        except KeyboardInterrupt:
            say("ncclt: interrupted: the running launch was ended, nothing was stored")
            raise typer.Exit(EXIT_INTERRUPTED) from None
        store.add_verification(verification)
        where = store.shown
    if as_json:
        print_json(verification.to_document())
    else:
        _print(verification, where, quiet=quiet)


def _recommendation(model: str, target: Target, storage: str | None) -> Recommendation:
    from ncclt.core.nccl_version import NcclVersion
    from ncclt.core.recommendation import Request
    from ncclt.store import chosen

    if not model or not target.cluster:
        raise UsageError(
            "give --model NAME (or --profile NAME) and --cluster NAME, whose recommendation is verified",
            hint="or compare two environments by --env NAME=VALUE and --base NAME=VALUE",
        )
    wanted = Request(
        cluster=target.cluster,
        model=model,
        nodes=target.nodes,
        gpus_per_node=target.gpus_per_node,
        nccl_version=str(NcclVersion.parse(target.nccl_version)) if target.nccl_version else None,
    )
    return chosen(storage, wanted, partly=True)  # the launches measure it, and change nothing else


def _variables(option: str, texts: Sequence[str]) -> Variables:
    from ncclt.core.verification import sorted_variables

    variables: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip() or "\0" in text:
            raise UsageError(f"{option} {text!r} is not NAME=VALUE", hint=f"for example {option} NCCL_ALGO=Ring")
        variables[name.strip()] = value
    return sorted_variables(variables)


def _notes(published: Recommendation | None) -> tuple[str, ...]:
    if published is None or not published.simulated:
        return ()
    return ("SIMULATED: the recommendation was tuned on a model of the cluster; the step times here are measured",)


class _Watch:
    """Shows each launch on stderr."""

    def __init__(self, request: VerifyRequest, *, hidden: bool, verbose: bool) -> None:
        self._request, self._hidden, self._verbose = request, hidden, verbose

    def begun(self) -> None:
        """Show the environments of both sides."""
        if self._hidden:
            return
        for name, variables in (("base", self._request.base_env), ("tuned", self._request.tuned_env)):
            say(f"ncclt: {name}: {_shown(variables)}")
        if self._request.removed_env:
            say(f"ncclt: no side inherits {', '.join(self._request.removed_env)} (--keep-env changes that)")
        for note in self._request.notes:
            say(f"ncclt: {note}")

    def __call__(self, launch: StepLaunch, result: LaunchResult) -> None:
        """Show one launch."""
        if self._verbose:
            sys.stderr.write(result.stdout + result.stderr)
        if not self._hidden:
            took = f"{launch.time_us / 1e3:.2f} ms per step" if launch.time_us and not launch.failure else "failed"
            say(f"ncclt: launch {launch.order + 1} of {len(self._request.order)} at most, {launch.side}: {took}")


def _shown(variables: Variables) -> str:
    import shlex

    return " ".join(f"{name}={shlex.quote(value)}" for name, value in variables) or "nothing set"


def _print_plan(request: VerifyRequest, *, as_json: bool) -> None:
    """Show what would be launched."""
    document: dict[str, Any] = {
        "schema": PLAN_SCHEMA,
        "argv": list(request.argv),
        "order": [side.value for side in request.order],
        "base_env": dict(request.base_env),
        "tuned_env": dict(request.tuned_env),
        "removed_env": list(request.removed_env),
        "recommendation": request.recommendation,
        "warmup": request.how.warmup,
        "steps": request.how.steps,
        "notes": list(request.notes),
    }
    if as_json:
        print_json(document)
        return
    import shlex

    print(f"command: {shlex.join(request.argv)}")
    print(f"launches: {len(request.order)} at most: {' '.join(request.order)}")
    print(f"steps: {request.how.steps} of each launch, after {request.how.warmup} of warm-up")
    print(f"base: {_shown(request.base_env)}")
    print(f"tuned: {_shown(request.tuned_env)}")
    print(f"removed from both: {', '.join(request.removed_env) or 'nothing'}")
    for note in request.notes:
        print(f"note: {note}")


def _print(verification: Verification, where: str, *, quiet: bool) -> None:
    from ncclt.core.verification import PERCENTILES, Side

    header = ("side", "launches", "steps", *(f"p{percent} ms" for percent in PERCENTILES))
    rows = []
    for side in Side:
        launches = sum(1 for launch in verification.launches if launch.side is side)
        times = [f"{time_us / 1e3:.3f}" for time_us in verification.percentiles(side).values()]
        count = str(len(verification.step_us(side)))
        rows.append((side.value, str(launches), count, *(times or ["-"] * len(PERCENTILES))))
    print_table(header, rows, numbers=header[1:])
    print(f"verdict: {verification.verdict.decision}: {verification.verdict.reason}")
    for launch in verification.launches:
        if launch.failure:
            say(f"ncclt: launch {launch.order + 1}, {launch.side}, failed: {launch.failure}")
    if quiet:
        return
    for note in verification.notes:
        say(f"note: {note}")
    say(f"ncclt: stored verification {verification.id} in {where}")
