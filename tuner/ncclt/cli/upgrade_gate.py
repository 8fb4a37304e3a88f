"""`ncclt upgrade --gate`: a command under today's and a new environment, and an exit code for CI."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ncclt.cli.exits import interruptible
from ncclt.cli.render import Column, format_percent, note, print_document, print_json, print_table, print_text, say
from ncclt.cli.verify import build_request as build_sides
from ncclt.cli.verify import parse_variables, split_command
from ncclt.core.cluster import Cluster
from ncclt.core.nccl_version import NcclVersion
from ncclt.core.plural import count_noun
from ncclt.core.verification import Side
from ncclt.errors import UsageError
from ncclt.launch.launcher import Launcher
from ncclt.launch.local import LocalLauncher
from ncclt.launch.process.session import KEEP_BYTES
from ncclt.measure.redact import variables_without_secrets, words_without_secrets
from ncclt.nccl.variables import split_variables
from ncclt.prove.comparison import Comparison

if TYPE_CHECKING:
    from ncclt.cli.upgrade import UpgradeOptions
    from ncclt.prove.gate import GateRequest, GateResult

GATE_SCHEMA = 1
"""Version of the documents that `upgrade --gate --json` prints."""

EXIT_REGRESSION = 5
"""Exit code for a new side that is slower or fails; not 1, with which a crash and an unwritable stdout end."""

EXIT_UNDECIDED = 4
"""Exit code for a comparison without a decision: as for other incomplete examinations."""

_LIBRARY = "libnccl.so.2"


def gate_upgrade(
    argv: tuple[str, ...],
    options: UpgradeOptions,
    how: Comparison,
    cluster: Cluster | None,
    *,
    dry_run: bool,
    hidden: bool,
    as_json: bool,
) -> None:
    """Compare both sides, print the decision and exit with its code.

    Args:
        argv: the command.
        options: as given.
        how: number, length and limits of the launches.
        cluster: where it runs; None = not named.
        dry_run: print the launches only.

    Raises:
        UsageError: there is nothing to compare.
        Exit: regression or undecided.
    """
    from ncclt.prove.gate import SIDE_NAMES, GateDecision, run_gate

    # The whole table is read, not only the last lines of the output.
    launcher = LocalLauncher(keep_env=split_variables(os.environ).of_trials, keep_bytes=KEEP_BYTES)
    request = _build_request(argv, options, how, launcher, cluster)
    plan = {"schema": GATE_SCHEMA, **_plan_document(request)}
    if dry_run:
        if as_json:
            print_json(plan)
        else:
            print_document(plan)
            pairs = count_noun(len(request.sides.order) // 2, "pair")
            note(f"2 launches with NCCL's log, then at most {pairs}, in this order")
            note(f"passes if no group of sizes and no single size is more than {format_percent(request.margin)} slower")
        return

    def watch(side: Side, order: int, failure: str) -> None:
        if not hidden:
            number = f"{order + 1} of up to {len(request.sides.order)}" if order >= 0 else "with NCCL's log"
            say(f"ncclt: launch {number}, {SIDE_NAMES[side]}: {'failed' if failure else 'done'}")

    with interruptible():
        result = run_gate(request, launcher, environ=os.environ, watch=watch)
    if as_json:
        print_json({**plan, **result.to_document()})
    else:
        print_gate(request, result, quiet=hidden)
    if result.decision.is_regression:
        raise typer.Exit(EXIT_REGRESSION)
    if result.decision is GateDecision.UNDECIDED:
        raise typer.Exit(EXIT_UNDECIDED)


def _build_request(
    argv: tuple[str, ...], options: UpgradeOptions, how: Comparison, launcher: Launcher, cluster: Cluster | None
) -> GateRequest:
    """Return the comparison that the options ask for.

    Raises:
        UsageError: the command or what distinguishes the sides is missing, or a library is not there.
    """
    from ncclt.prove.gate import GateRequest

    if not argv:
        raise UsageError(
            "give the command after --", hint="for example: -- torchrun ... bench.py, or -- mpirun ... all_reduce_perf"
        )
    base_argv = split_command(options.against)
    own = split_variables(os.environ).tuning
    base_env = parse_variables("--from-env", options.from_env, own=_with_library(own, options.old, "--from"))
    new_env = parse_variables("--to-env", options.to_env, own=_with_library(own, options.new, "--to"))
    if base_env == new_env and base_argv in ((), argv):
        raise UsageError(
            "both sides are the same command in the same environment",
            hint="name the new NCCL with --to PATH or --to-env LD_PRELOAD=PATH, or another command with --against",
        )
    versions = ((Side.BASE, options.old), (Side.TUNED, options.new))
    return GateRequest(
        sides=build_sides(argv, base_argv, base_env=base_env, tuned_env=new_env, how=how, launcher=launcher),
        margin=options.margin,
        expected={side: NcclVersion.parse(text) for side, text in versions if text and "/" not in text},
        cluster=cluster,
        stated=options.differs,
    )


def _with_library(own: Mapping[str, str], text: str, option: str) -> Mapping[str, str]:
    """Return variables that also load the library of a path, before what the shell preloads."""
    if "/" not in text:
        return own
    path = Path(text).absolute()
    # A wheel's folder has it below lib/, NVIDIA's archive too.
    places = (path, path / _LIBRARY, path / "lib" / _LIBRARY)
    library = next((place for place in places if place.is_file()), None)
    if library is None:
        raise UsageError(f"{option} {text}: no {_LIBRARY} there", hint="name the file, or the folder of the wheel")
    return {**own, "LD_PRELOAD": " ".join(filter(None, (str(library), os.environ.get("LD_PRELOAD", ""))))}


def _safe_argv(request: GateRequest, side: Side) -> tuple[str, ...]:
    """Return the command of a side without the secrets of its environment."""
    argv, variables = request.sides.side(side)
    return words_without_secrets(argv, environ={**os.environ, **dict(variables)})


def _plan_document(request: GateRequest) -> dict[str, object]:
    from ncclt.prove.gate import SIDE_NAMES

    sides = request.sides
    return {
        "argv": list(_safe_argv(request, Side.TUNED)),
        "base_argv": list(_safe_argv(request, Side.BASE)) if sides.base_argv else None,
        "today_env": dict(variables_without_secrets(sides.base_env)),
        "new_env": dict(variables_without_secrets(sides.tuned_env)),
        "removed_env": list(sides.removed_env),
        "expected_nccl": {SIDE_NAMES[side]: str(version) for side, version in request.expected.items()},
        "stated": request.stated or None,
        "margin": request.margin,
        "order": [SIDE_NAMES[side] for side in sides.order],
    }


def print_gate(request: GateRequest, result: GateResult, *, quiet: bool) -> None:
    """Print both sides as seen, the known issues, each group, the decision, notes unless quiet, and one next step."""
    from ncclt.prove.gate import SIDE_NAMES

    for side, facts in result.seen.items():
        usual = [f"{name} {facts[name]}" for name in ("NCCL", "CUDA driver", "network") if name in facts]
        print_text(f"{SIDE_NAMES[side] + ':':7}{', '.join(usual) or 'NCCL version: not seen'}")
    changed = [f"{name} logged as {new}, today {today}" for name, today, new in result.differences if name != "NCCL"]
    changed += _set_differently(request)
    if changed:
        print_text(f"differs: {'; '.join(changed)}")
    for issue in result.issues:
        print_text(f"known: {issue}")
    if len(result.groups) > 1 or any(group.worst for group in result.groups):
        print_table(
            result.groups,
            [
                Column("new side", lambda group: group.name),
                Column("change", lambda group: group.slowdown),
                Column("worst size", lambda group: f"{group.worst} {group.worst_change}" if group.worst else "-"),
                Column("decision", lambda group: group.decision),
            ],
        )
    print_text(f"verdict: {result.decision}: {result.reason}")
    for line in result.failure.splitlines()[1:]:
        say(f"  {line}")
    for sentence in () if quiet else result.notes:
        note(sentence)
    print_text(f"Next:    {_next_step(request, result)}")


def _set_differently(request: GateRequest) -> list[str]:
    """Describe what the user sets differently, without secrets."""
    today, new = (dict(variables_without_secrets(env)) for env in (request.sides.base_env, request.sides.tuned_env))
    changed = [f"command, today {shlex.join(_safe_argv(request, Side.BASE))}"]
    return (changed if request.sides.base_argv else []) + [
        f"{name} set to {new[name]}, today {today.get(name, 'unset')}"
        if name in new
        else f"{name} unset, today {today[name]}"
        for name in dict.fromkeys((*today, *new))
        if today.get(name) != new.get(name)
    ]


def _next_step(request: GateRequest, result: GateResult) -> str:
    from ncclt.prove.gate import SIDE_NAMES, GateDecision

    versions = {side: facts.get("NCCL", "") for side, facts in result.seen.items()}
    if result.decision is GateDecision.FAILED:
        variables = [f"{name}={value}" for name, value in variables_without_secrets(request.sides.tuned_env)]
        command = shlex.join(["env", *variables, *_safe_argv(request, Side.TUNED)])
        return f"keep today's side; to reproduce the failure: {command}"
    if result.decision is GateDecision.SLOWER:
        return f"stay with {f'NCCL {versions[Side.BASE]}' if versions[Side.BASE] else 'the side of today'}"
    if result.decision is GateDecision.UNDECIDED:
        if result.failure:
            side = next((launch.side for launch in result.launches if launch.failure), Side.TUNED)
            return f"run the command alone on the side {SIDE_NAMES[side]} until it is reliable"
        if " did not measure " in result.reason:
            return "run the command alone on the new side until it measures the same calls"
        blocks = replace(request.sides.how, blocks=2 * request.sides.how.blocks).blocks
        return f"--blocks {blocks} compares longer; fewer disturbances on the nodes help more"
    if " and " in versions[Side.TUNED]:
        return f"check the environment: processes of the new side load NCCL {versions[Side.TUNED]}"
    if request.cluster and all(versions.values()) and versions[Side.BASE] != versions[Side.TUNED]:
        return (
            f"upgrade; for what has to be tuned again: ncclt upgrade --cluster {shlex.quote(request.cluster.name)} "
            f"--from {versions[Side.BASE]} --to {versions[Side.TUNED]}"
        )
    return "upgrade; recommendations are measured again with the new version (`ncclt upgrade` lists them)"
