"""Output of a study: progress while it runs on stderr, then its result as text or as a document."""

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
from ncclt.cli.summary_view import print_details, print_summary
from ncclt.core.plural import count_noun
from ncclt.core.study import Phase, gpu_seconds
from ncclt.core.trial import Outcome
from ncclt.deliver.render.delivery import describe_channels
from ncclt.launch.slurm.job import job_loss
from ncclt.measure.target import ON_REQUEST
from ncclt.nccl.compile import variables_for_setting
from ncclt.nccl.switching import split_setting
from ncclt.nccl.tuner_plugin import find
from ncclt.prove.payback import describe_ceiling, describe_cost

if TYPE_CHECKING:
    from ncclt.core.setting import Setting
    from ncclt.core.study import Study, Trial
    from ncclt.core.workload import Workload
    from ncclt.measure.testbed import Testbed
    from ncclt.pipeline.tune import TuneRequest, TuneResult
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
        self._phase = self._proof = ""
        self._block = -1

    def __enter__(self) -> TuneView:
        """Start the bar."""
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """Remove the bar."""
        self._progress.stop()

    def opened(self, study: Study, resumed: int) -> None:
        """Print where trials run, and on what."""
        if self._hidden:
            return
        from ncclt.search.space import describe_space

        cluster = study.cluster
        say(f"ncclt: {_describe_place(study, self._testbed.reason)}")
        say(
            f"ncclt: {study.workload.name} on {cluster.name}: {cluster.nodes} x {cluster.gpus_per_node} {cluster.gpu}, "
            f"NCCL {cluster.nccl_version}, {count_noun(len(study.workload.messages), 'message')}"
        )
        space = describe_space(self._testbed, study.workload, study.process_wide, deterministic=study.deterministic)
        say(f"ncclt: Search space: {space}")
        if study.today:
            mine = " ".join(f"{name}={value}" for name, value in study.today)
            say(f"ncclt: The A/B test also measures what you run today: {mine}")
        if ceiling := describe_ceiling(study.workload):
            say(f"ncclt: Tuning can save {ceiling}")
        if resumed:
            say(f"ncclt: Resuming study {study.name} after {count_noun(resumed, 'trial')}")

    def searched(self, progress: SearchProgress) -> None:
        """Show one launch of the search."""
        gain = progress.default_us / progress.policy_us
        self._show(
            "search",
            f"Searching: up to {count_noun(progress.budget, 'trial')}",
            f"{progress.done} of up to {progress.budget}, {gain:.2f}x so far",
            progress.trial,
            share=(progress.done, progress.budget),
        )

    def confirmed(self, trial: Trial, done: int, total: int) -> None:
        """Show one launch of the confirmation."""
        name = "NCCL default" if trial.is_default else trial.label
        self._show("confirm", "Confirming the best candidates", f"repeating {name}", trial, share=(done, total))

    def proved(self, trial: Trial, blocks: int, pairs: Pairs | None) -> None:
        """Show one launch of the A/B test: its block, and the gain of the blocks before it."""
        if not self._hidden and blocks != self._block:
            from ncclt.prove.verdict import format_interval

            gain = f", {format_interval(pairs)} so far" if pairs is not None else ""
            self._block, self._proof = blocks, f"block {blocks + 1} of up to {self._blocks}{gain}"
        line = f"Validating: A/B test against the NCCL default, up to {count_noun(self._blocks, 'block')}"
        self._show("validate", line, self._proof, trial, share=(blocks, self._blocks))

    def _show(self, phase: str, line: str, live: str, trial: Trial, *, share: tuple[int, int]) -> None:
        """Show one launch: on a terminal in the live line, elsewhere as the first one of its phase."""
        if self._hidden:
            return
        if trial.result.outcome is not Outcome.OK:
            reason = trial.result.detail.splitlines()[-1] if trial.result.detail else ""
            # Through the console of the bar, which keeps the line above it on a terminal.
            self._progress.console.print(
                visible(f"ncclt: trial {trial.number} ({trial.label}): {trial.result.outcome}: {reason}"), markup=False
            )
        if self._live:
            self._progress.update(self._task, description=phase, completed=share[0], total=share[1], text=live)
        elif phase != self._phase:
            say(f"ncclt: {line}")
        self._phase = phase


def _describe_place(study: Study, reason: str) -> str:
    """Describe the place of the trials, with the reason for it."""
    if study.simulated:
        place = f"{study.label}: timings from a model of {study.cluster.name}"
    elif study.label:
        place = f"replaying recorded {study.cluster.gpu} timings"
    else:
        place = f"running trials with {study.launcher}"
    text = place if reason in ("", ON_REQUEST) else f"{reason}: {place}"
    return text if text.startswith(study.cluster.name) else f"{text[0].upper()}{text[1:]}"


def print_result(
    result: TuneResult,
    store: Store,
    *,
    again: str,
    steps_per_day: int | None,
    quiet: bool,
    verbose: bool,
) -> None:
    """Print the result of a run: its summary, and before it the details if asked for.

    Args:
        result: of the run; its source is the option by which other commands find the store.
        again: the command that continues an undecided study.
        steps_per_day: of the job; None = as for `estimate_gain`.
    """
    study, source = result.study, result.source
    summary = result.summarize(source=source, build=find() is None, steps_per_day=steps_per_day)
    if result.finished and not quiet:
        say("ncclt: This study is finished: showing its result; --continue N adds trials")
    if summary is not None:
        if verbose:
            print_details(summary, study, result.messages, (f"search: {result.stop}", *result.notes))
            print()
        print_summary(summary, again=again, source=source, details=verbose)
    elif result.left:
        say("ncclt: Another worker of this study confirms and validates the result; this one is done")
    else:
        if not quiet and (cost := describe_cost(study, result.trials, None)):
            say(f"ncclt: Cost of this study so far: {cost}")
        _loss, requeued = job_loss(os.environ)
        todo = "" if requeued else "; run the same command to resume"
        say(f"ncclt: Stopped: {result.stop}. Saved {count_noun(len(result.trials), 'trial')} in {store.shown}{todo}")


def result_document(result: TuneResult, *, steps_per_day: int | None) -> dict[str, Any]:
    """Return the document of `tune --json`, without times of day, hosts or stores: equal seeds give equal documents.

    Args:
        steps_per_day: as for `print_result`.
    """
    study, found = result.study, result.recommendation
    cluster = study.cluster
    verdict = found.table.verdict if found else None
    summary = result.summarize(steps_per_day=steps_per_day)
    document: dict[str, Any] = summary.to_document() if summary else {"payback_steps": None}
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
        "channels": describe_channels(found.table.effective) if found else "",
        "recommendation": {"id": found.id, "revision": found.revision} if found else None,
        "messages": [row.to_document() for row in result.messages],
        "trials": [trial_row(t, cluster) for t in result.trials if t.phase is Phase.SEARCH],
        "gpu_hours": gpu_seconds(result.trials, cluster) / 3600,
        **document,
        "coverage": found.coverage.to_document() if found and found.coverage else None,
        "launches": {phase.value: sum(t.phase is phase for t in result.trials) for phase in Phase},
        **({"best_possible": {"speedup": result.exhaustive[0]}} if result.exhaustive else {}),
        "notes": list(dict.fromkeys([*result.notes, *(document["notes"] if summary else ())])),
    }


def plan_document(
    study: Study, testbed: Testbed, space: SearchSpace, request: TuneRequest, notes: tuple[str, ...]
) -> dict[str, Any]:
    """Return the plan of a study, for `--dry-run`."""
    cluster, workload = study.cluster, study.workload
    from ncclt.search.space import count_excluded

    launches = _launch_rows(testbed, space, workload)
    missing = count_excluded(testbed, workload, study.process_wide, deterministic=study.deterministic)
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
    """Return the means that force a setting: the tuner plugin, variables, or both."""
    version, collectives = testbed.runner.cluster.version, workload.collectives
    rules, rest = split_setting(setting, version=version, collectives=collectives, plugin=testbed.by_plugin)
    variables = variables_for_setting(rest, version=version, collectives=collectives).variables
    words = ["by the plugin"] if rules else []
    return " ".join([*words, *(f"{name}={value}" for name, value in variables)])


def _launch_rows(testbed: Testbed, space: SearchSpace, workload: Workload) -> list[dict[str, Any]]:
    """Return the launches of the default, of the first setting after it and of today's settings, where there are any.

    Persistent ranks are started once for the first two.
    """
    from ncclt.core.setting import DEFAULT
    from ncclt.measure import LaunchedRunner, PersistentRunner

    runner = testbed.searching[0]
    if not isinstance(runner, LaunchedRunner | PersistentRunner):
        return []
    messages = [calls.message for calls in workload.messages]
    settings = () if testbed.persistent else space.anchors()[:1]
    rows = [
        launch_row(setting.label, plan)
        for setting, padded in ((DEFAULT, testbed.find_padded(workload)), *((setting, ()) for setting in settings))
        for plan in runner.plans(setting, [*messages, *padded])
    ]
    today = testbed.by_today
    if isinstance(today, LaunchedRunner | PersistentRunner):
        rows += [launch_row("today", plan) for plan in today.plans(DEFAULT, messages)]
    return rows
