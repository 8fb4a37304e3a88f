"""`ncclt studies`: list studies and their results, and the text of a result wherever a command prints it."""

from __future__ import annotations

import math
import shlex
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ncclt import __version__
from ncclt.cli.configuration import storage_url
from ncclt.cli.options import (
    AsJson,
    ClusterFilter,
    ModelFilter,
    StepsPerDay,
    StudyKey,
    spread,
    storage_option,
    words_of,
)
from ncclt.cli.render import (
    Column,
    draw_bar,
    format_factor,
    format_number,
    format_percent,
    note,
    print_facts,
    print_headline,
    print_json,
    print_table,
    print_text,
)
from ncclt.core.budget import MAX_BLOCKS, MIN_BLOCKS, Budget
from ncclt.core.cluster import Cluster
from ncclt.core.message import Message, format_sizes
from ncclt.core.option import Option
from ncclt.core.plural import count_noun
from ncclt.core.recommendation import ORIGIN_WORDS, Decision, Recommendation
from ncclt.core.study import Study, StudyEntry, StudyState, Trial, gpu_seconds
from ncclt.core.trial import ON_STEPS
from ncclt.deliver.render.delivery import choose_form, describe_channels
from ncclt.errors import NotFoundError, UsageError
from ncclt.measure.target import Target
from ncclt.nccl.p2p_chunk import default_process_wide
from ncclt.nccl.tuner_plugin import find as find_plugin
from ncclt.prove.payback import describe_cost
from ncclt.store import open_to_read

if TYPE_CHECKING:
    from ncclt.prove.study_summary import MessageRow, StudySummary

_ROWS, _BAR = 20, 3
"""Messages of the table at most, and characters of its bars."""

app = typer.Typer(help="List and show studies.", no_args_is_help=True)


@app.command("list")
@spread
def list_studies(
    cluster: ClusterFilter = None,
    model: ModelFilter = None,
    limit: Annotated[int, Option("Max studies to list.")] = 50,
    as_json: AsJson = False,
) -> None:
    """List studies, newest first."""
    if limit < 1:
        raise UsageError(f"--limit must be at least 1, not {limit}")
    with open_to_read(storage_url()) as store:
        entries = store.studies.page(limit=limit, cluster=cluster, model=model).items
    if as_json:
        print_json({"schema": 1, "studies": [_entry_document(entry) for entry in entries]})
        return
    print_table(
        entries,
        [
            Column("id", lambda entry: entry.study.id),
            Column("model", lambda entry: entry.study.workload.name),
            Column("cluster", lambda entry: entry.study.cluster.name),
            Column("nodes x GPUs", _describe_size, drop=2),
            Column("trials on", lambda entry: entry.study.label.partition(":")[0].lower() or entry.study.launcher),
            Column("trials", lambda entry: entry.trials, drop=3),
            Column("result", _describe_result),
            Column("updated", lambda entry: entry.study.updated[:10], drop=1),
        ],
    )


def _describe_size(entry: StudyEntry) -> str:
    return f"{entry.study.cluster.nodes} x {entry.study.cluster.gpus_per_node}"


def _describe_result(entry: StudyEntry) -> str:
    if entry.study.state is not StudyState.DONE:
        return entry.study.state.value
    recommendation = entry.recommendation
    if recommendation is None:
        return "-"
    verdict = choose_form(recommendation).proven.verdict
    gain = f" {format_factor(verdict.speedup)}" if verdict.decision is Decision.TUNED else ""
    return f"{recommendation.verdict_word(verdict)}{gain}{' STALE' if recommendation.stale else ''}"


def _entry_document(entry: StudyEntry) -> dict[str, Any]:
    study, recommendation = entry.study, entry.recommendation
    return {
        "id": study.id,
        "name": study.name,
        **build_job_document(study),
        "state": study.state.value,
        "trials": entry.trials,
        "verdict": recommendation.table.verdict if recommendation else None,
        "updated": study.updated,
    }


def build_job_document(study: Study) -> dict[str, Any]:
    """Return the entries of every study document on its job and the origin of its times."""
    cluster = study.cluster
    return {
        "model": study.workload.name,
        "cluster": cluster.name,
        "nodes": cluster.nodes,
        "gpus_per_node": cluster.gpus_per_node,
        "nccl_version": cluster.nccl_version,
        "launcher": study.launcher,
        "simulated": study.simulated,
        "label": study.label,
    }


@app.command("show")
@spread
def show(
    key: StudyKey,
    evidence: Annotated[bool, Option("Show the launches of the A/B test and recompute the verdict.")] = False,
    plot: Annotated[bool, Option("Plot the time per message, default and policy.")] = False,
    steps_per_day: StepsPerDay = None,
    as_json: AsJson = False,
) -> None:
    """Show a study: trials, verdict, gain and its next command."""
    storage = storage_url()
    from ncclt.pipeline.on_jobs import describe_study
    from ncclt.prove.proof import evidence_document

    if plot and (evidence or as_json):
        raise UsageError("--plot cannot be combined with --evidence or --json", hint="give one of them")
    with open_to_read(storage) as store:
        study = store.studies.get(key)
        trials = store.trials.find(study.id)
        newest = next(iter(store.recommendations.find(study=study.id)), None)
        publication = store.revisions.publication(newest.id) if newest else ""
        on_jobs = describe_study(study, store) if study.launcher in ON_STEPS else []
        source = storage_option(storage, store.shown)
    if (plot or evidence) and (on_jobs or newest is None):
        why, hint = "no verdict yet", "run the same `ncclt tune` command to resume"
        if on_jobs:
            why, hint = "no trials: its evidence is the step times of jobs", on_jobs[-1]
        raise NotFoundError(f"study {study.name} has {why}", hint=hint)
    if plot and newest:
        print_picture(study, trials, newest)
        return
    if evidence and newest:
        print_evidence(evidence_document(newest, trials, study.workload), as_json=as_json)
        return
    summary = None
    if newest:
        # Documents name no store and no machine, here as in `tune --json`.
        use = choose_form(newest) if as_json else choose_form(newest, source=source, build=find_plugin() is None)
        # These need numpy, which the base install lacks.
        from ncclt.prove.confirm import confirmed_times
        from ncclt.prove.study_summary import build_message_rows, summarize_study

        summary = summarize_study(study, trials, newest, use=use, steps_per_day=steps_per_day)
    if as_json:
        print_json(_build_document(study, trials, newest, summary))
        return
    print_text(f"{study.name}{f' ({study.label})' if study.label else ''}")
    print_text(f"{study.state}: {study.reason or 'no verdict yet'}")
    if on_jobs:
        print_text("\n".join(on_jobs))
        return
    if newest is None:
        print_text(f"cost of {count_noun(len(trials), 'trial')}: {describe_cost(study, trials, None)}")
    _print_trials(study, trials)
    if newest and summary:
        rows = build_message_rows(newest, trials, study.workload, confirmed_times(trials).default)
        print_text("")
        print_details(summary, study, rows)
        if publication:
            note(publication)
        print_text("")
        print_summary(summary, again=_reconstruct_command(study, newest, source), source=source, details=True)


def _build_document(
    study: Study, trials: Sequence[Trial], newest: Recommendation | None, summary: StudySummary | None
) -> dict[str, Any]:
    return {
        "schema": 1,
        **replace(study, printed_costs=None).to_document(),
        "label": study.label,
        "recommendation": newest,
        "gpu_hours": gpu_seconds(trials, study.cluster) / 3600,
        **(summary.to_document() if summary else {}),
        "trials": [build_trial_document(trial, study.cluster) for trial in trials],
    }


def _print_trials(study: Study, trials: Sequence[Trial]) -> None:
    print_table(
        trials,
        [
            Column("#", lambda trial: trial.number),
            Column("phase", lambda trial: trial.phase.value + (f" {trial.arm} {trial.block}" if trial.arm else "")),
            Column("setting", lambda trial: trial.label),
            Column("outcome", lambda trial: trial.result.outcome.value),
            Column(f"µs per {study.workload.unit}", lambda trial: trial.score_us),
            Column("detail", lambda trial: (trial.result.detail.splitlines() or [""])[-1], drop=1),
        ],
    )


def print_picture(study: Study, trials: Sequence[Trial], newest: Recommendation) -> None:
    """Print the time of one call of each message as bars: the default above the policy; at most 80 columns."""
    print_text(f"{study.workload.name} on {study.cluster.name}: µs per call, default (░) and policy (█)")
    for line in textwrap.wrap(study.label, 80, break_on_hyphens=False):
        print_text(line)
    from ncclt.prove.confirm import confirmed_times
    from ncclt.prove.study_summary import build_message_rows

    rows = build_message_rows(newest, trials, study.workload, confirmed_times(trials).default)
    longest_us = max(row.default_us for row in rows)
    names = _name_messages(rows)
    for row in sorted(rows, key=lambda row: row.calls.message):
        setting = f" {row.setting.label}" if not row.setting.is_default else ""
        for name, time_us, block, gain in (
            (names[row.calls.message], row.default_us, "░", ""),
            ("", row.tuned_us, "█", f" {format_factor(row.default_us / row.tuned_us)}{setting}"),
        ):
            bar = block * max(1, round(18 * time_us / longest_us))
            sys.stdout.write(f"{name:<26}{format_number(time_us):>10} {bar:<18}{gain}".rstrip() + "\n")


def _name_messages(rows: Sequence[MessageRow]) -> dict[Message, str]:
    """Return collective and size of each message, marked where its time is interpolated."""
    sizes = format_sizes(row.calls.message.size_bytes for row in rows)
    return {
        row.calls.message: f"{row.calls.message.collective} {sizes[row.calls.message.size_bytes]}"
        + ("~" if row.interpolated else "")
        for row in rows
    }


def build_trial_document(trial: Trial, cluster: Cluster) -> dict[str, Any]:
    """Return a trial as a JSON object, without its samples.

    Args:
        cluster: of the study, for the GPUs that a launch holds.
    """
    return {
        "number": trial.number,
        "phase": trial.phase.value,
        "arm": trial.arm.value if trial.arm else None,
        "block": trial.block,
        "setting": trial.setting.to_document(),
        "policy": trial.policy.to_document() if trial.policy else None,
        "label": trial.label,
        "repeat": trial.repeat,
        "outcome": trial.result.outcome.value,
        "detail": trial.result.detail,
        "time_per_step_us": trial.score_us,
        "gpu_seconds": gpu_seconds([trial], cluster),
        "place": trial.result.place,
        "warm": trial.result.persistent,
        "by_plugin": trial.result.by_plugin,
    }


def print_evidence(document: dict[str, Any], *, as_json: bool) -> None:
    """Print a table per arm with its verdict, recomputed from the launches."""
    if as_json:
        print_json(document)
        return
    if origin := ORIGIN_WORDS.get(document["origin"]):
        print_text(f"demonstration on {origin} timings")
    for arm in document["arms"]:
        print_text(f"\n{arm['arm']}: {arm['verdict']['decision']}: {arm['verdict']['reason']}")
        if not arm["blocks"] and arm["same"] is None:
            print_text("no A/B test")
            continue
        print_table(
            arm["blocks"],
            [
                Column("block", lambda block: block["block"] + 1),
                Column("default, ms", lambda block: _join_ms(block["default_us"]), drop=2, right=True),
                Column("policy, ms", lambda block: _join_ms(block["policy_us"]), drop=2, right=True),
                Column("log ratios", lambda b: " ".join(f"{r:+.3f}" for r in b["log_ratios"]), drop=1, right=True),
                Column("speed-up so far", lambda block: f"{block['speedup']:.3f}", right=True),
                Column("95 % interval", lambda block: _format_ends(block["interval"]) or "none yet"),
                Column("decision", lambda block: block["decision"]),
            ],
        )
        _print_recomputed(arm)
        if over := arm.get("over_today"):
            print_text(f"over what you run today: {over['verdict']['decision']}: {over['verdict']['reason']}")
            _print_recomputed(over)
    if today := document["today"]:
        names, default = ", ".join(today["variables"]), today["over_today"]
        verdict = default["verdict"]
        print_text(f"\nNCCL default over what you run today ({names}): {verdict['decision']}: {verdict['reason']}")
        _print_recomputed(default)


def _print_recomputed(judged: Mapping[str, Any]) -> None:
    if judged["same"]:
        print_text("recomputed: same")
    else:
        print_text(f"recomputed: DIFFERENT: {judged['recomputed']['decision']}: {judged['recomputed']['reason']}")
        note(f"judged by ncclt {__version__}; another version may judge by other rules")


def _join_ms(times_us: Sequence[float]) -> str:
    return " ".join(format_number(time_us / 1e3) for time_us in times_us)


def _format_ends(interval: Sequence[float | None]) -> str:
    """Return an interval; empty if it has no end."""
    low, high = interval
    return f"{low:.3f} to {high:.3f}" if low and high and math.isfinite(high) else ""


def print_summary(summary: StudySummary, *, again: str, source: str, details: bool = False) -> None:
    """Print the headline and the facts of a study, one line each; at most 12 lines without details.

    Args:
        again: the command that continues an undecided study.
        source: options that name the store, with a space before each.
        details: they stand above.
    """
    print_headline(summary.headline, is_command=False)
    lines = summary.lines(again=again, source=source, details=details)
    shown = [line for line in lines if line[0] != "Details" or not details]
    print_facts(shown, commands=("Use", "Continue", "Details", "Page"))


def print_details(summary: StudySummary, study: Study, rows: Sequence[MessageRow], notes: Sequence[str] = ()) -> None:
    """Print the table of messages, the gain per part, and the remarks on the result.

    Args:
        rows: of its messages, most time per step first.
        notes: further ones, first.
    """
    print_messages(rows, study)
    if summary.parts:
        print_text("")
        _print_parts(summary, study)
    print_text("")
    remarks = (*notes, *summary.notes, summary.other, describe_channels(summary.use.proven.effective))
    for sentence in dict.fromkeys(remarks):
        if sentence and sentence not in (*summary.warnings, *dict(summary.facts).values()):
            note(sentence)


def _print_parts(summary: StudySummary, study: Study) -> None:
    """Print the gain of every part of a merged workload."""
    caption = f"in one step of {study.workload.name}: {study.workload.provenance.detail['parts']}"
    if summary.use.form is None and any(part.speedup for part in summary.parts):
        caption += "\nthe policy is not delivered: keeping the NCCL default"
    print_table(
        summary.parts,
        [
            Column("part", lambda part: part.name),
            Column("weight", lambda part: f"{part.weight:g}", right=True, drop=2),
            Column("default\nµs/step", lambda part: part.default_us, right=True, drop=1),
            Column("policy\nµs/step", lambda part: part.policy_us, right=True, drop=1),
            Column("speed-up", lambda part: part.speedup and format_factor(part.speedup), right=True),
            Column("95 % interval", lambda part: (part.interval and _format_ends(part.interval)) or "-", right=True),
            Column("", lambda part: part.note),
        ],
        caption=caption,
    )


def build_command_again(model: str, target: Target, budget: Budget, source: str, *, searched_enough: bool) -> str:
    """Return the command that continues an undecided study in any folder.

    The proof gets twice as many blocks, at least `MIN_BLOCKS`: fewer would decide nothing either. A search that ended
    early (`searched_enough` is false) gets the usual budget, or twice as many trials, instead.
    """
    words = ["ncclt", "tune", "--model", model, *words_of(target)]
    if searched_enough:
        budget = replace(budget, blocks=max(MIN_BLOCKS, 2 * budget.blocks), more=None)
    else:
        usual = Budget()
        trials = usual.trials if budget.trials < usual.trials else 2 * budget.trials
        budget = replace(budget, trials=trials, seconds=None, gpu_hours=None, steps=None, more=None)
    words += words_of(budget)
    return shlex.join(words) + source


def _reconstruct_command(study: Study, newest: Recommendation, source: str) -> str:
    """Return the same for a stored study, which does not keep the options of its launches.

    Args:
        newest: its newest revision.
    """
    blocks = max(newest.table.verdict.blocks, MAX_BLOCKS)
    if not study.simulated:
        limit = f"--blocks {2 * blocks}" if newest.is_searched_enough else f"--trials {2 * Budget().trials}"
        return f"the same `ncclt tune` command with {limit}"
    cluster = study.cluster
    target = Target(
        cluster=cluster.name,
        nodes=cluster.nodes,
        gpus_per_node=cluster.gpus_per_node,
        nccl_version=cluster.nccl_version,
        launcher=study.launcher,
    )
    default = default_process_wide(cluster, (calls.message for calls in study.workload.messages))
    budget = Budget(
        process_wide=None if study.process_wide == default else study.process_wide,
        seed=study.seed,
        sampler=study.sampler,
        deterministic=study.deterministic,
        study=study.name,
        blocks=blocks,
    )
    return build_command_again(study.workload.name, target, budget, source, searched_enough=newest.is_searched_enough)


def print_messages(rows: Sequence[MessageRow], study: Study) -> None:
    """Print default against policy per message; the last line adds all of them up.

    Args:
        rows: most time per step first.
    """
    unit, shown, names = study.workload.unit, rows[:_ROWS], _name_messages(rows[:_ROWS])
    default_us = sum(row.calls.calls_per_step * row.default_us for row in rows)
    policy_us = sum(row.calls.calls_per_step * row.tuned_us for row in rows)
    # Where nothing is saved in all, bars would draw noise.
    most_us = max(row.saved_us for row in rows) if default_us > policy_us else math.inf
    table: list[tuple[Any, ...]] = []
    for row in shown:
        setting = replace(row.setting, parameters=())
        label = "NCCL default" if setting.is_default else setting.label
        times = (f"{row.calls.calls_per_step:g}", row.default_us, row.tuned_us, row.saved_us)
        table.append((names[row.calls.message], *times, draw_bar(row.saved_us / most_us, _BAR), label))
    table.append((f"all, per {unit}", "", default_us, policy_us, default_us - policy_us, "", ""))
    caption = []
    if len(rows) > _ROWS:
        hidden_us = sum(row.calls.calls_per_step * row.default_us for row in rows[_ROWS:])
        share = format_percent(hidden_us / default_us)
        caption.append(f"{len(rows) - _ROWS} more messages, with {share} of the time")
    if parameters := dict(parameter for row in rows for parameter in row.setting.parameters):
        caption.append("all with " + ", ".join(f"NCCL_{name}={value}" for name, value in parameters.items()))
    if any(row.interpolated for row in shown):
        caption.append("~ size not recorded: interpolated (log-log) between its neighbours")
    if study.label:
        caption.append(study.label)
    columns = [
        Column("message"),
        Column(f"calls\nper {unit}", right=True, drop=1),
        Column("default\nµs/call"),
        Column("policy\nµs/call"),
        Column(f"saved\nµs/{unit}"),
        Column("", drop=2),
        Column("setting"),
    ]
    print_table(table, columns, caption="\n".join(caption))
