"""`ncclt upgrade --gate`: a command under today's and a new environment, and an exit code for CI."""

from __future__ import annotations

import os
import shlex
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ncclt.cli.output import interruptible, note, print_json, print_table, say
from ncclt.cli.verify import format_variables, parse_variables, split_command
from ncclt.core.plural import count_noun
from ncclt.errors import UsageError
from ncclt.measure.redact import variables_without_secrets, words_without_secrets
from ncclt.prove.comparison import Comparison

if TYPE_CHECKING:
    from ncclt.core.cluster import Cluster
    from ncclt.core.nccl_version import NcclVersion
    from ncclt.core.verification import Side
    from ncclt.launch.launcher import Launcher
    from ncclt.prove.gate import GateRequest, GateResult

GATE_SCHEMA = 1
"""Version of the documents that `upgrade --gate --json` prints."""

EXIT_REGRESSION = 5
"""Exit code for a new side that is slower or fails; not 1, with which a crash and an unwritable stdout end."""

EXIT_UNDECIDED = 4
"""Exit code for a comparison without a decision: as for other incomplete examinations."""

_LIBRARY = "libnccl.so.2"

_WIDTH = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class GateOptions:
    """Options of the gate, as given.

    Attributes:
        argv: the command.
        old, new: version, or path to a library, of either side; empty = not given.
        from_env, to_env: NAME=VALUE of either side.
        against: command of today's side; None = the same.
        stated: the user's words on what differs.
        margin: largest slowdown that passes, as a share.
        how: number, length and limits of the launches.
        cluster: where it runs; None = not named.
    """

    argv: tuple[str, ...]
    old: str
    new: str
    from_env: tuple[str, ...]
    to_env: tuple[str, ...]
    against: str | None
    stated: str
    margin: float
    how: Comparison
    cluster: Cluster | None


def gate_upgrade(options: GateOptions, *, dry_run: bool, hidden: bool, as_json: bool) -> None:
    """Compare both sides, print the decision and exit with its code.

    Args:
        dry_run: print the launches only.

    Raises:
        UsageError: there is nothing to compare.
        Exit: regression or undecided.
    """
    from ncclt.launch.local import LocalLauncher
    from ncclt.launch.process.session import KEEP_BYTES
    from ncclt.nccl.variables import split_variables
    from ncclt.prove.gate import SIDE_NAMES, GateDecision, run_gate

    # The whole table is read, not only the last lines of the output.
    launcher = LocalLauncher(keep_env=split_variables(os.environ).of_trials, keep_bytes=KEEP_BYTES)
    request = build_request(options, launcher)
    if dry_run:
        _print_plan(request, as_json=as_json)
        return

    def watch(side: Side, order: int, failure: str) -> None:
        if not hidden:
            number = f"{order + 1} of up to {len(request.sides.order)}" if order >= 0 else "with NCCL's log"
            say(f"ncclt: launch {number}, {SIDE_NAMES[side]}: {'failed' if failure else 'done'}")

    with interruptible():
        result = run_gate(request, launcher, environ=os.environ, watch=watch)
    if as_json:
        print_json({"schema": GATE_SCHEMA, **_plan_document(request), **result.to_document()})
    else:
        print_gate(request, result, quiet=hidden)
    if result.decision.is_regression:
        raise typer.Exit(EXIT_REGRESSION)
    if result.decision is GateDecision.UNDECIDED:
        raise typer.Exit(EXIT_UNDECIDED)


def build_request(options: GateOptions, launcher: Launcher) -> GateRequest:
    """Return the comparison that the options ask for.

    Raises:
        UsageError: the command or what distinguishes the sides is missing, or a library is not there.
    """
    from ncclt.core.verification import Side
    from ncclt.nccl.variables import split_variables
    from ncclt.prove.gate import GateRequest
    from ncclt.prove.step_times import VerifyRequest, open_mpi_sides

    if not options.argv:
        raise UsageError(
            "give the command after --", hint="for example: -- torchrun ... bench.py, or -- mpirun ... all_reduce_perf"
        )
    base_argv = split_command(options.against)
    own = split_variables(os.environ).tuning
    base_env = parse_variables("--from-env", options.from_env, own=_with_library(own, options.old, "--from"))
    new_env = parse_variables("--to-env", options.to_env, own=_with_library(own, options.new, "--to"))
    if base_env == new_env and base_argv in ((), options.argv):
        raise UsageError(
            "both sides are the same command in the same environment",
            hint="name the new NCCL with --to PATH or --to-env LD_PRELOAD=PATH, or another command with --against",
        )
    versions = {Side.BASE: _version(options.old), Side.TUNED: _version(options.new)}
    return GateRequest(
        sides=VerifyRequest(
            argv=options.argv,
            base_argv=base_argv,
            base_env=base_env,
            tuned_env=new_env,
            removed_env=launcher.plan(options.argv, variables=own, timeout_s=options.how.timeout_s).unset_env,
            how=options.how,
            open_mpi=open_mpi_sides(options.argv, base_argv, environ=os.environ),
        ),
        margin=options.margin,
        expected={side: version for side, version in versions.items() if version},
        cluster=options.cluster,
        stated=options.stated,
    )


def _version(text: str) -> NcclVersion | None:
    from ncclt.core.nccl_version import NcclVersion

    return NcclVersion.parse(text) if text and "/" not in text else None


def _with_library(own: Mapping[str, str], text: str, option: str) -> Mapping[str, str]:
    """Return variables that also load the library of a path, before what the shell preloads."""
    if "/" not in text:
        return own
    path = Path(text).absolute()
    # A wheel's folder has it below lib/, NVIDIA's archive too.
    found = next((one for one in (path, path / _LIBRARY, path / "lib" / _LIBRARY) if one.is_file()), None)
    if found is None:
        raise UsageError(f"{option} {text}: no {_LIBRARY} there", hint="name the file, or the folder of the wheel")
    return {**own, "LD_PRELOAD": " ".join(filter(None, (str(found), os.environ.get("LD_PRELOAD", ""))))}


def _commands(request: GateRequest) -> dict[str, str]:
    """Describe each side by its variables, and by its command where there are two."""
    from ncclt.core.verification import Side
    from ncclt.prove.gate import SIDE_NAMES

    shown = {}
    for side in Side:
        variables = request.sides.side(side)[1]
        words = format_variables(variables)
        shown[SIDE_NAMES[side]] = (
            f"{shlex.join(_safe_argv(request, side))} ({words})" if request.sides.base_argv else words
        )
    return shown


def _safe_argv(request: GateRequest, side: Side) -> tuple[str, ...]:
    """Return the command of a side without the secrets of its environment."""
    argv, variables = request.sides.side(side)
    return words_without_secrets(argv, environ={**os.environ, **dict(variables)})


def _plan_document(request: GateRequest) -> dict[str, object]:
    from ncclt.core.verification import Side
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


def _print_plan(request: GateRequest, *, as_json: bool) -> None:
    """Print the planned launches."""
    if as_json:
        print_json({"schema": GATE_SCHEMA, **_plan_document(request)})
        return
    from ncclt.core.verification import Side
    from ncclt.prove.gate import SIDE_NAMES

    sides = request.sides
    if not sides.base_argv:
        print(f"command: {shlex.join(_safe_argv(request, Side.TUNED))}")
    for name, words in _commands(request).items():
        print(f"{name}: {words}")
    print(f"removed from both: {', '.join(sides.removed_env) or 'nothing'}")
    for side, version in request.expected.items():
        print(f"{SIDE_NAMES[side]} must load NCCL {version}")
    if request.stated:
        print(f"differs, as stated: {request.stated}")
    print(f"launches: 2 with NCCL's log, then up to {count_noun(len(sides.order) // 2, 'pair')} in random order")
    print(f"passes if no group of sizes and no single size is more than {request.margin * 100:.3g} % slower")


def print_gate(request: GateRequest, result: GateResult, *, quiet: bool) -> None:
    """Print both sides as seen, the known issues, each group, the decision, notes unless quiet, and one next step."""
    from ncclt.prove.gate import SIDE_NAMES

    for side, found in result.seen.items():
        usual = [f"{name} {found[name]}" for name in ("NCCL", "CUDA driver", "network") if name in found]
        print(f"{SIDE_NAMES[side] + ':':7}{', '.join(usual) or 'NCCL version: not seen'}")
    changed = [f"{name} logged as {new}, today {today}" for name, today, new in result.differences if name != "NCCL"]
    changed += _set_differently(request)
    if changed:
        print(f"differs: {'; '.join(changed)}")
    for issue in result.issues:
        print(
            textwrap.fill(
                f"known: {issue}", _WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
            )
        )
    if len(result.groups) > 1 or any(group.worst for group in result.groups):
        rows = [
            (group.name, group.slowdown, f"{group.worst} {group.worst_change}" if group.worst else "-", group.decision)
            for group in result.groups
        ]
        print_table(("new side", "change", "worst size", "decision"), rows)
    print(f"verdict: {result.decision}: {result.reason}")
    for line in result.failure.splitlines()[1:]:
        say(f"  {line}")
    for sentence in () if quiet else result.notes:
        note(sentence)
    print(f"Next:    {_next_step(request, result)}")


def _set_differently(request: GateRequest) -> list[str]:
    """Describe what the user sets differently, without secrets."""
    from ncclt.core.verification import Side

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
    from ncclt.core.verification import Side
    from ncclt.prove.gate import SIDE_NAMES, GateDecision

    versions = {side: found.get("NCCL", "") for side, found in result.seen.items()}
    if result.decision is GateDecision.FAILED:
        variables = [f"{name}={value}" for name, value in variables_without_secrets(request.sides.tuned_env)]
        words = shlex.join(["env", *variables, *_safe_argv(request, Side.TUNED)])
        return f"keep today's side; to reproduce the failure: {words}"
    if result.decision is GateDecision.SLOWER:
        return f"stay with {f'NCCL {versions[Side.BASE]}' if versions[Side.BASE] else 'the side of today'}"
    if result.decision is GateDecision.UNDECIDED:
        if result.failure:
            side = next((one.side for one in result.launches if one.failure), Side.TUNED)
            return f"run the command alone on the side {SIDE_NAMES[side]} until it is reliable"
        if " did not measure " in result.reason:
            return "run the command alone on the new side until it measures the same calls"
        more = replace(request.sides.how, blocks=2 * request.sides.how.blocks).blocks
        return f"--blocks {more} compares longer; fewer disturbances on the nodes help more"
    if " and " in versions[Side.TUNED]:
        return f"check the environment: processes of the new side load NCCL {versions[Side.TUNED]}"
    if request.cluster and all(versions.values()) and versions[Side.BASE] != versions[Side.TUNED]:
        return (
            f"upgrade; for what has to be tuned again: ncclt upgrade --cluster {shlex.quote(request.cluster.name)} "
            f"--from {versions[Side.BASE]} --to {versions[Side.TUNED]}"
        )
    return "upgrade; recommendations are measured again with the new version (`ncclt upgrade` lists them)"
