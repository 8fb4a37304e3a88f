"""The text output of a study: progress while it runs, tables and the verdict afterwards."""

from __future__ import annotations

import shlex
import sys
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

from ncclt.cli.output import print_table, say
from ncclt.cli.studies import trial_row
from ncclt.core.message import format_bytes
from ncclt.core.recommendation import Decision, Recommendation
from ncclt.core.study import Phase, gpu_seconds
from ncclt.core.trial import Outcome
from ncclt.deliver.render.delivery import channels_words
from ncclt.nccl.compile import variables_for_setting
from ncclt.nccl.switching import split
from ncclt.prove.payback import cost_words, payback_of

if TYPE_CHECKING:
    from ncclt.core.setting import Setting
    from ncclt.core.study import Study, Trial
    from ncclt.core.workload import Workload
    from ncclt.measure.testbed import Testbed
    from ncclt.pipeline import TuneRequest, TuneResult
    from ncclt.prove.message_table import MessageRow
    from ncclt.search.loop import Progress as SearchProgress
    from ncclt.search.space import SearchSpace
    from ncclt.store import Store

TUNE_SCHEMA = 1
"""Version of the document that `tune --json` prints."""

_ROWS = 20


class TuneView:
    """A progress bar on a terminal, plain lines elsewhere, nothing if hidden. Everything goes to stderr."""

    def __init__(self, testbed: Testbed, *, hidden: bool) -> None:
        self._testbed = testbed
        self._hidden = hidden
        self._live = not hidden and sys.stderr.isatty()
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[best]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=not self._live,
        )
        self._task = self._progress.add_task("search", total=None, best="")
        self._phase = ""

    def __enter__(self) -> TuneView:
        """Start the bar."""
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """Remove the bar."""
        self._progress.stop()

    def opened(self, study: Study, resumed: int) -> None:
        """Say where trials run and why, and whether a study is resumed."""
        if self._hidden:
            return
        cluster = study.cluster
        label = f" ({study.label})" if study.label else ""
        say(f"ncclt: trials run on: {study.launcher}{label}, {self._testbed.reason}")
        say(
            f"ncclt: {study.workload.name} on {cluster.name}, {cluster.nodes} x {cluster.gpus_per_node} {cluster.gpu}, "
            f"NCCL {cluster.nccl_version}, {len(study.workload.messages)} messages"
        )
        if resumed:
            say(f"ncclt: resuming study {study.name}: {resumed} trials are stored")

    def searched(self, progress: SearchProgress) -> None:
        """Show one launch of the search."""
        gain = progress.default_us / progress.policy_us
        best = (
            f"best policy {progress.policy_us / 1e3:.3f} ms/step, default {progress.default_us / 1e3:.3f} ({gain:.2f}x)"
        )
        self._show("search", progress.done, progress.budget, best, progress.trial)

    def confirmed(self, trial: Trial, done: int, total: int) -> None:
        """Show one launch of the confirmation."""
        self._show("confirm", done, total, trial.setting.label, trial)

    def proved(self, trial: Trial, done: int, total: int) -> None:
        """Show one launch of the proof."""
        self._show("prove", done, total, f"{trial.arm}, launch {trial.block + 1}", trial)

    def _show(self, phase: str, done: int, total: int, text: str, trial: Trial) -> None:
        if self._hidden:
            return
        if trial.result.outcome is not Outcome.OK:
            reason = trial.result.detail.splitlines()[-1] if trial.result.detail else ""
            # Through the console of the bar, which keeps the line above it on a terminal.
            self._progress.console.print(
                f"ncclt: trial {trial.number} ({trial.setting.label}): {trial.result.outcome}: {reason}", markup=False
            )
        if self._live:
            self._progress.update(self._task, description=phase, completed=done, total=total, best=text)
        elif phase != self._phase or done % 10 == 0 or done == total:
            say(f"ncclt: {phase} {done}/{total}: {text}")
        self._phase = phase


def print_result(result: TuneResult, testbed: Testbed, store: Store, *, storage_option: str, quiet: bool) -> None:
    """Print the table of messages, the verdict in words, and the command that uses it.

    Args:
        result: of the run.
        testbed: where it ran.
        store: where it is kept.
        storage_option: the option that `ncclt env` needs to find this store; empty where it needs none.
        quiet: no notes.
    """
    if not quiet:
        if result.finished:
            say(f"ncclt: study {result.study.name} is finished, nothing was launched; --continue N adds launches to it")
        say(f"ncclt: the search stopped: {result.stop}")
        for note in result.notes:
            say(f"ncclt: note: {note}")
    found = result.recommendation
    if not quiet:
        verdict = found.table.verdict if found else None
        say(f"ncclt: cost of all launches of this study: {cost_words(result.study, result.trials, verdict)}")
    if result.left:
        say("ncclt: another worker of this study confirms and proves what was found; this one is done")
        return
    if found is None:
        say(f"ncclt: {len(result.trials)} trials are saved in {store.shown}; run the same command to resume")
        return
    label = result.study.label
    _print_messages(result.messages, label)
    mark = f"{label}: " if label else ""
    print(f"\n{mark}{verdict_words(found, per=result.study.workload.per)}")
    if testbed.landscape is not None:
        best, ours = testbed.landscape.speedups(result.study.workload, found.table.policy)
        print(
            f"best possible by the recorded times (exhaustive search of {len(testbed.landscape.settings())} settings): "
            f"{best:.4f}x; the policy that was found: {ours:.4f}x"
        )
    print(f"stored: study {result.study.name} ({len(result.trials)} trials) in {store.shown}")
    for words in dict.fromkeys(channels_words(d.effective) for d in (found.table, found.variables) if d):
        if words:
            print(words)
    print(use_lines(found, storage_option))


def verdict_words(found: Recommendation, *, per: str) -> str:
    """Return the verdict as a sentence; `per` is that of the workload."""
    verdict = found.table.verdict
    if verdict.decision is Decision.TUNED:
        return (
            f"tuned: {found.model} on {found.cluster} communicates {verdict.speedup:.3f}x as fast as with NCCL's own "
            f"choice (95 % interval {verdict.interval[0]:.3f} to {verdict.interval[1]:.3f}, {verdict.blocks} A B B A "
            f"blocks): {verdict.default_us / 1e3:.3f} -> {verdict.policy_us / 1e3:.3f} ms {per}"
        )
    return f"{verdict.decision}: NCCL's own choice stays for {found.model} on {found.cluster}: {verdict.reason}"


def use_lines(found: Recommendation, storage_option: str) -> str:
    """Return how to use a recommendation: by variables, and by the per-size table."""
    fingerprint = found.fingerprint
    command = (
        f"ncclt env --cluster {shlex.quote(found.cluster)} --model {shlex.quote(found.model)} "
        f"--nodes {fingerprint.nodes} --gpus-per-node {fingerprint.gpus_per_node} "
        f"--nccl-version {fingerprint.nccl_version}{storage_option}"
    )
    lines = [f'use it:  eval "$({command})"']
    if found.variables is None or found.variables.verdict.decision is not Decision.TUNED:
        why = found.variables.verdict.reason if found.variables else "no single choice per collective beats the default"
        lines.append(f"         variables alone change nothing here: {why}")
    else:
        verdict = found.variables.verdict
        lines.append(
            f"         variables alone: {verdict.speedup:.3f}x (95 % interval {verdict.interval[0]:.3f} to "
            f"{verdict.interval[1]:.3f})"
        )
    if found.table.verdict.decision is Decision.TUNED:
        lines.append(f"per size: {command} --format tuner-csv > policy.csv   (for an NCCL tuner plugin)")
    return "\n".join(lines)


def _print_messages(rows: tuple[MessageRow, ...], label: str) -> None:
    def bandwidths(row: MessageRow) -> str:
        message = row.calls.message
        return f"{message.busbw_gbps(row.default_us):.2f} > {message.busbw_gbps(row.tuned_us):.2f}"

    table = [
        (
            f"{row.calls.message.collective} {format_bytes(row.calls.message.size_bytes)}"
            + ("~" if row.interpolated else ""),
            f"{row.calls.calls_per_step:g}",
            f"{row.default_us:.1f}",
            f"{row.tuned_us:.1f}",
            f"{row.gain * 100:+.1f} %",
            bandwidths(row),
            row.setting.label,
        )
        for row in rows[:_ROWS]
    ]
    caption = []
    if len(rows) > _ROWS:
        rest = sum(r.calls.calls_per_step * r.default_us for r in rows[_ROWS:])
        total = sum(r.calls.calls_per_step * r.default_us for r in rows)
        caption.append(f"... and {len(rows) - _ROWS} more messages with {rest / total * 100:.1f} % of the time")
    if any(row.interpolated for row in rows):
        caption.append("~ this size was not recorded: interpolated or extrapolated")
    if label:
        caption.append("SIMULATED: all times come from a model of the cluster" if label == "SIMULATED" else label)
    numbers = ("calls", "default us", "tuned us", "gain", "bus GB/s")
    print_table(("message", *numbers, "setting"), table, caption="\n".join(caption), numbers=numbers)


def result_document(result: TuneResult, testbed: Testbed) -> dict[str, Any]:
    """Return the document of `tune --json`; without times of day or host names, so equal seeds give equal documents."""
    best = ours = None
    if testbed.landscape is not None and result.recommendation is not None:
        best, ours = testbed.landscape.speedups(result.study.workload, result.recommendation.table.policy)
    study, found = result.study, result.recommendation
    cluster = study.cluster
    verdict = found.table.verdict if found else None
    won = payback_of(study, result.trials, verdict)
    return {
        "schema": TUNE_SCHEMA,
        "study": study.name,
        "study_id": study.id,
        "cluster": cluster.name,
        "model": study.workload.name,
        "nodes": cluster.nodes,
        "gpus_per_node": cluster.gpus_per_node,
        "nccl_version": cluster.nccl_version,
        "launcher": study.launcher,
        "simulated": study.simulated,
        "label": study.label,
        "state": study.state.value,
        "stopped": result.stop,
        "verdict": verdict.decision.value if verdict else None,
        "reason": verdict.reason if verdict else result.stop,
        "speedup": verdict.speedup if verdict else None,
        "interval": verdict.to_document()["interval"] if verdict else None,
        "blocks": verdict.blocks if verdict else 0,
        "policy": found.table.policy.to_document() if found else None,
        "variables": found.variables.to_document() if found and found.variables else None,
        "channels": channels_words(found.table.effective) if found else "",
        "recommendation": {"id": found.id, "revision": found.revision} if found else None,
        "messages": [_message_row(row) for row in result.messages],
        "trials": [trial_row(t, cluster) for t in result.trials if t.phase is Phase.SEARCH],
        "gpu_hours": gpu_seconds(result.trials, cluster) / 3600,
        "payback_steps": won.steps if won else None,
        "launches": {phase.value: sum(t.phase is phase for t in result.trials) for phase in Phase},
        **({"best_possible": {"speedup": best, "found": ours}} if best is not None else {}),
        "notes": list(result.notes),
    }


def _message_row(row: MessageRow) -> dict[str, Any]:
    message = row.calls.message
    return {
        "collective": message.collective.value,
        "dtype": message.dtype,
        "size_bytes": message.size_bytes,
        "group_size": message.group_size,
        "calls_per_step": row.calls.calls_per_step,
        "default_us": row.default_us,
        "tuned_us": row.tuned_us,
        "default_busbw_gbps": message.busbw_gbps(row.default_us),
        "tuned_busbw_gbps": message.busbw_gbps(row.tuned_us),
        "gain": row.gain,
        "setting": row.setting.to_document(),
        "interpolated": row.interpolated,
    }


def plan_document(
    study: Study, testbed: Testbed, space: SearchSpace, request: TuneRequest, notes: tuple[str, ...]
) -> dict[str, Any]:
    """Return what a study would do, for `--dry-run`."""
    cluster, workload = study.cluster, study.workload
    launches = _launch_rows(testbed, space, workload)
    return {
        "schema": TUNE_SCHEMA,
        "study": study.name,
        "launcher": study.launcher,
        "why": testbed.reason,
        "simulated": study.simulated,
        "label": study.label,
        **({"sampler": study.sampler} if study.sampler else {}),
        "cluster": cluster.name,
        "nodes": cluster.nodes,
        "gpus_per_node": cluster.gpus_per_node,
        "nccl_version": cluster.nccl_version,
        "messages": [f"{c.message.label} x {c.calls_per_step:g}" for c in workload.messages],
        "settings": len(space.distinct),
        "parameters": list(space.distributions),
        "trials": request.effort.trials,
        "first": [f"{s.label}: {_forced(s, testbed, workload)}" for s in space.anchors()],
        "notes": list(notes),
        **({"launches": launches} if launches else {}),
    }


def _forced(setting: Setting, testbed: Testbed, workload: Workload) -> str:
    """Say how a setting will be forced: by which variables, and whether by the tuner plugin."""
    version, collectives = testbed.runner.cluster.version, workload.collectives
    parts = split(setting, version=version, collectives=collectives, plugin=True) if testbed.by_variables else None
    left = parts.by_variables if parts else setting
    variables = variables_for_setting(left, version=version, collectives=collectives).variables
    words = ["by the plugin"] if parts and parts.rules else []
    return " ".join([*words, *(f"{name}={value}" for name, value in variables)])


def _launch_rows(testbed: Testbed, space: SearchSpace, workload: Workload) -> list[dict[str, Any]]:
    """Return the launches of the default and of the first setting after it; empty where nothing is launched.

    Persistent ranks are started once for both.
    """
    from ncclt.core.setting import DEFAULT
    from ncclt.measure import LaunchedRunner, PersistentRunner

    runner = testbed.searching[0]
    if not isinstance(runner, LaunchedRunner | PersistentRunner):
        return []
    messages = [calls.message for calls in workload.messages]
    return [
        {
            "setting": setting.label,
            "argv": list(plan.argv),
            "set_env": dict(plan.set_env),
            "unset_env": list(plan.unset_env),
            "files": dict(plan.files),
            "timeout_s": plan.timeout_s,
        }
        for setting in (DEFAULT, *(() if testbed.persistent else space.anchors()[:1]))
        for plan in runner.plans(setting, messages)
    ]
