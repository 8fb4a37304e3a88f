"""The text output of a study: progress while it runs, tables and the verdict afterwards."""

from __future__ import annotations

import os
import sys
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

from ncclt.cli.launch_view import launch_row
from ncclt.cli.output import console, say
from ncclt.cli.stdio import visible
from ncclt.cli.studies import trial_row
from ncclt.cli.summary_view import print_messages, print_summary
from ncclt.core.plural import count_noun
from ncclt.core.study import Phase, gpu_seconds
from ncclt.core.trial import Outcome
from ncclt.deliver.render.delivery import channels_words
from ncclt.launch.slurm.job import job_loss
from ncclt.nccl.compile import variables_for_setting
from ncclt.nccl.switching import split
from ncclt.nccl.tuner_plugin import find
from ncclt.prove.payback import ceiling_words, cost_words
from ncclt.prove.study_summary import summarize_study

if TYPE_CHECKING:
    from ncclt.core.setting import Setting
    from ncclt.core.study import Study, Trial
    from ncclt.core.workload import Workload
    from ncclt.measure.testbed import Testbed
    from ncclt.pipeline.tune import TuneRequest, TuneResult
    from ncclt.prove.message_table import MessageRow
    from ncclt.prove.verdict import Pairs
    from ncclt.search.loop import Progress as SearchProgress
    from ncclt.search.space import SearchSpace
    from ncclt.store import Store

TUNE_SCHEMA = 1
"""Version of the document that `tune --json` prints."""


class TuneView:
    """A progress bar on a terminal, plain lines elsewhere, nothing if hidden. Everything goes to stderr."""

    def __init__(self, testbed: Testbed, *, hidden: bool, blocks: int) -> None:
        self._testbed = testbed
        self._blocks = blocks
        self._hidden = hidden
        self._live = not hidden and sys.stderr.isatty()
        self._progress = Progress(
            SpinnerColumn("line"),  # in any encoding
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[text]}"),
            console=console(to_stderr=True),
            disable=not self._live,
        )
        self._task = self._progress.add_task("search", total=None, text="")
        self._phase = self._text = self._proof = ""
        self._block = -1

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
        from ncclt.search.space import search_words

        cluster = study.cluster
        label = f" ({study.label})" if study.label else ""
        say(f"ncclt: trials run on: {study.launcher}{label}, {self._testbed.reason}")
        say(
            f"ncclt: {study.workload.name} on {cluster.name}, {cluster.nodes} x {cluster.gpus_per_node} {cluster.gpu}, "
            f"NCCL {cluster.nccl_version}, {count_noun(len(study.workload.messages), 'message')}"
        )
        for words in (ceiling_words(study.workload), search_words(self._testbed, study.workload, study.process_wide)):
            if words:
                say(f"ncclt: {words}")
        if resumed:
            say(f"ncclt: resuming study {study.name} after {count_noun(resumed, 'stored trial')}")

    def searched(self, progress: SearchProgress) -> None:
        """Show one launch of the search."""
        gain = progress.default_us / progress.policy_us
        text = f"{progress.done} of at most {progress.budget}, {gain:.2f}x so far"
        self._show("search", text, progress.trial, done=progress.done, most=progress.budget)

    def confirmed(self, trial: Trial, done: int, total: int) -> None:
        """Show one launch of the confirmation."""
        self._show("confirm", f"repeating {trial.label}", trial, done=done, most=total)

    def proved(self, trial: Trial, blocks: int, pairs: Pairs | None) -> None:
        """Show one launch of the proof: the block that it belongs to, and the gain of those before it."""
        if not self._hidden and blocks != self._block:
            from ncclt.prove.verdict import interval_words

            gain = f", {interval_words(pairs)} so far" if pairs is not None else ""
            self._block, self._proof = blocks, f"block {blocks + 1} of at most {self._blocks}{gain}"
        self._show("proof", self._proof, trial, done=blocks, most=self._blocks)

    def _show(self, phase: str, text: str, trial: Trial, *, done: int, most: int) -> None:
        if self._hidden:
            return
        if trial.result.outcome is not Outcome.OK:
            reason = trial.result.detail.splitlines()[-1] if trial.result.detail else ""
            # Through the console of the bar, which keeps the line above it on a terminal.
            self._progress.console.print(
                visible(f"ncclt: trial {trial.number} ({trial.label}): {trial.result.outcome}: {reason}"), markup=False
            )
        if self._live:
            self._progress.update(self._task, description=phase, completed=done, total=most, text=text)
        elif phase != self._phase or {"search": done % 10 == 0, "proof": text != self._text}.get(phase):
            say(f"ncclt: {phase}{'' if phase == 'search' else ':'} {text}")
        self._phase, self._text = phase, text


def print_result(
    result: TuneResult,
    testbed: Testbed,
    store: Store,
    *,
    source: str,
    again: str,
    steps_per_day: int | None,
    quiet: bool,
) -> None:
    """Print the table of messages, the verdict in words, and the command that uses it.

    Args:
        result: of the run.
        testbed: where it ran.
        store: where it is kept.
        source: the option by which other commands find this store; empty where they need none.
        again: the command that continues an undecided proof.
        steps_per_day: of the job; None = as `estimate_gain` takes it.
        quiet: no notes.
    """
    found, study = result.recommendation, result.study
    summary = None
    if found is not None and not result.left:
        summary = summarize_study(
            study, result.trials, found, source=source, build=find() is None, steps_per_day=steps_per_day
        )
    if not quiet:
        if result.finished:
            say(f"ncclt: study {result.study.name} is finished, nothing was launched; --continue N adds launches to it")
        say(f"ncclt: the search stopped: {result.stop}")
        for note in result.notes:
            if summary is None or note not in summary.notes:
                say(f"ncclt: note: {note}")
    if result.left:
        say("ncclt: another worker of this study confirms and proves what was found; this one is done")
        return
    if found is None or summary is None:
        if not quiet and (cost := cost_words(study, result.trials, None)):
            say(f"ncclt: cost of all launches of this study: {cost}")
        todo = "" if job_loss(os.environ).requeued else "; run the same command to resume"
        say(f"ncclt: saved {count_noun(len(result.trials), 'trial')} in {store.shown}{todo}")
        return
    print_messages(result.messages, study)
    if testbed.landscape is not None:
        best, _ = testbed.landscape.speedups(study.workload, found.table.policy)
        print(f"exhaustive search of the {len(testbed.landscape.settings())} recorded settings: at most {best:.3f}x")
    place = store.revisions.publication(found.id)
    print_summary(summary, study, place, trials=len(result.trials), shown=store.shown, source=source, again=again)


def result_document(result: TuneResult, testbed: Testbed, *, steps_per_day: int | None) -> dict[str, Any]:
    """Return the document of `tune --json`, without times of day, hosts or stores: equal seeds give equal documents.

    Args:
        result: of the run.
        testbed: where it ran.
        steps_per_day: as for `print_result`.
    """
    best = None
    if testbed.landscape is not None and result.recommendation is not None:
        best, _ = testbed.landscape.speedups(result.study.workload, result.recommendation.table.policy)
    study, found = result.study, result.recommendation
    cluster = study.cluster
    verdict = found.table.verdict if found else None
    summary = summarize_study(study, result.trials, found, steps_per_day=steps_per_day) if found else None
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
        **(summary.to_document() if summary else {"payback_steps": None}),
        "coverage": found.coverage.to_document() if found and found.coverage else None,
        "launches": {phase.value: sum(t.phase is phase for t in result.trials) for phase in Phase},
        **({"best_possible": {"speedup": best}} if best is not None else {}),
        "notes": list(dict.fromkeys([*result.notes, *(summary.notes if summary else ())])),
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
        "saved_us_per_step": row.saved_us,
        "setting": row.setting.to_document(),
        "interpolated": row.interpolated,
    }


def plan_document(
    study: Study, testbed: Testbed, space: SearchSpace, request: TuneRequest, notes: tuple[str, ...]
) -> dict[str, Any]:
    """Return what a study would do, for `--dry-run`."""
    cluster, workload = study.cluster, study.workload
    from ncclt.search.space import left_out

    launches = _launch_rows(testbed, space, workload)
    missing = left_out(testbed, workload, study.process_wide)
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
        **({"left_out": [f"{n} setting{'s' * (n > 1)}: {why}" for why, n in missing.items()]} if missing else {}),
        "parameters": list(space.distributions),
        "trials": request.budget.trials,
        "first": [f"{s.label}: {_forced(s, testbed, workload)}" for s in space.anchors()],
        "notes": list(notes),
        **({"launches": launches} if launches else {}),
    }


def _forced(setting: Setting, testbed: Testbed, workload: Workload) -> str:
    """Say how a setting will be forced: by which variables, and whether by the tuner plugin."""
    version, collectives = testbed.runner.cluster.version, workload.collectives
    parts = split(setting, version=version, collectives=collectives, plugin=testbed.by_plugin)
    variables = variables_for_setting(parts.by_variables, version=version, collectives=collectives).variables
    words = ["by the plugin"] if parts.rules else []
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
        launch_row(setting.label, plan)
        for setting in (DEFAULT, *(() if testbed.persistent else space.anchors()[:1]))
        for plan in runner.plans(setting, messages)
    ]
