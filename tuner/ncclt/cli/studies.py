"""`ncclt studies`: list studies and their results."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ncclt import __version__
from ncclt.cli.completion import cluster_names, model_names
from ncclt.cli.configuration import storage_url
from ncclt.cli.options import AsJson, StepsPerDay, StudyKey, storage_option
from ncclt.cli.output import note, print_json, print_table
from ncclt.core.plural import count_noun
from ncclt.core.recommendation import ORIGIN_WORDS, Decision
from ncclt.core.study import StudyState, gpu_seconds
from ncclt.deliver.render.delivery import choose_form
from ncclt.errors import NotFoundError, UsageError
from ncclt.nccl.tuner_plugin import find
from ncclt.prove.payback import describe_cost

if TYPE_CHECKING:
    from ncclt.core.cluster import Cluster
    from ncclt.core.recommendation import Recommendation
    from ncclt.core.study import Study, StudyEntry, Trial

app = typer.Typer(help="List and show studies.", no_args_is_help=True)


@app.callback()
def studies() -> None:
    """List and show studies."""


@app.command("list")
def list_studies(
    cluster: Annotated[str | None, typer.Option(help="Cluster of the studies.", autocompletion=cluster_names)] = None,
    model: Annotated[str | None, typer.Option(help="Workload of the studies.", autocompletion=model_names)] = None,
    limit: Annotated[int, typer.Option(help="Max studies to list.")] = 50,
    as_json: AsJson = False,
) -> None:
    """List studies, newest first."""
    from ncclt.store import open_to_read

    if limit < 1:
        raise UsageError(f"--limit must be at least 1, not {limit}")
    with open_to_read(storage_url()) as store:
        page = store.studies.page(limit=limit, cluster=cluster, model=model)
    if as_json:
        print_json({"schema": 1, "studies": [_summary_row(s) for s in page.items]})
        return
    rows = [
        (
            s.study.id,
            s.study.workload.name,
            s.study.cluster.name,
            f"{s.study.cluster.nodes} x {s.study.cluster.gpus_per_node}",
            s.study.label.partition(":")[0].lower() or s.study.launcher,
            str(s.trials),
            _outcome(s) if s.study.state is StudyState.DONE else s.study.state.value,
            s.study.updated[:10],
        )
        for s in page.items
    ]
    print_table(
        ("id", "model", "cluster", "nodes x GPUs", "trials on", "trials", "result", "updated"),
        rows,
        numbers=("trials",),
    )


@app.command("show")
def show(
    key: StudyKey,
    evidence: Annotated[
        bool, typer.Option("--evidence", help="Show the launches of the A/B test and recompute the verdict.")
    ] = False,
    plot: Annotated[bool, typer.Option("--plot", help="Plot the time per message, default and policy.")] = False,
    steps_per_day: StepsPerDay = None,
    as_json: AsJson = False,
) -> None:
    """Show a study: trials, verdict, gain and its next command."""
    storage = storage_url()
    from ncclt.core.trial import ON_STEPS
    from ncclt.prove.study_summary import summarize_study
    from ncclt.store import open_to_read

    if plot and (evidence or as_json):
        raise UsageError("--plot cannot be combined with --evidence or --json", hint="give one of them")

    with open_to_read(storage) as store:
        study = store.studies.get(key)
        trials = store.trials.find(study.id)
        shown, newest = store.shown, next(iter(store.recommendations.find(study=study.id)), None)
        place = store.revisions.publication(newest.id) if newest else ""
        on_jobs = []
        if study.launcher in ON_STEPS:
            from ncclt.pipeline.on_jobs import describe_study

            on_jobs = describe_study(study, store)
    source = storage_option(storage, shown)
    if on_jobs and (plot or evidence):
        raise NotFoundError(
            f"study {study.name} has no trials: its evidence is the step times of jobs", hint=on_jobs[-1]
        )
    if plot:
        print_picture(study, trials, newest)
        return
    if evidence:
        from ncclt.prove.proof import evidence_document

        if newest is None:
            raise NotFoundError(
                f"study {study.name} has no verdict yet", hint="run the same `ncclt tune` command to resume"
            )
        document = evidence_document(newest, trials, study.workload)
        if as_json:
            print_json(document)
        else:
            print_evidence(document)
        return
    summary = None
    if newest:
        # Documents name no store and no machine, here as in `tune --json`.
        use = choose_form(newest) if as_json else choose_form(newest, source=source, build=find() is None)
        summary = summarize_study(study, trials, newest, use=use, steps_per_day=steps_per_day)
    if as_json:
        print_json(
            {
                "schema": 1,
                **replace(study, printed_costs=None).to_document(),
                "label": study.label,
                "recommendation": newest.to_document() if newest else None,
                "gpu_hours": gpu_seconds(trials, study.cluster) / 3600,
                **(summary.to_document() if summary else {}),
                "trials": [trial_row(t, study.cluster) for t in trials],
            }
        )
        return
    mark = f" ({study.label})" if study.label else ""
    print(f"{study.name}{mark}\n{study.state}: {study.reason or 'no verdict yet'}")
    if on_jobs:
        print("\n".join(on_jobs))
        return
    if newest is None:
        print(f"cost of {count_noun(len(trials), 'trial')}: {describe_cost(study, trials, None)}")
    time = f"µs per {study.workload.unit}"
    print_table(
        ("#", "phase", "setting", "outcome", time, "detail"),
        [
            (
                str(t.number),
                t.phase.value + (f" {t.arm} {t.block}" if t.arm else ""),
                t.label,
                t.result.outcome.value,
                f"{t.score_us:.1f}" if t.score_us is not None else "-",
                t.result.detail.splitlines()[-1] if t.result.detail else "",
            )
            for t in trials
        ],
        numbers=("#", time),
    )
    if newest and summary:
        from ncclt.cli.summary_view import command_again_of, print_details, print_summary
        from ncclt.prove.confirm import confirmed_times
        from ncclt.prove.study_summary import build_message_rows

        print()
        print_details(
            summary, study, build_message_rows(newest, trials, study.workload, confirmed_times(trials).default)
        )
        if place:
            note(place)
        print()
        print_summary(summary, again=command_again_of(study, newest, source), source=source, details=True)


def print_picture(study: Study, trials: Sequence[Trial], found: Recommendation | None) -> None:
    """Print the time of one call of each message as bars: the default above the policy; at most 80 columns."""
    from ncclt.core.message import format_sizes
    from ncclt.prove.confirm import confirmed_times
    from ncclt.prove.study_summary import build_message_rows

    if found is None:
        raise NotFoundError(f"study {study.name} has no verdict yet", hint="run the same command to resume")
    print(f"{study.workload.name} on {study.cluster.name}: µs per call, default (░) and policy (█)")
    for line in textwrap.wrap(study.label, 80, break_on_hyphens=False):
        print(line)
    rows = build_message_rows(found, trials, study.workload, confirmed_times(trials).default)
    longest = max(row.default_us for row in rows)
    sizes = format_sizes(row.calls.message.size_bytes for row in rows)
    for row in sorted(rows, key=lambda row: row.calls.message):
        message = row.calls.message
        name = f"{message.collective} {sizes[message.size_bytes]}{'~' if row.interpolated else ''}"
        chosen = f" {row.setting.label}" if not row.setting.is_default else ""
        for text, time_us, block, after in (
            (name, row.default_us, "░", ""),
            ("", row.tuned_us, "█", f" {row.default_us / row.tuned_us:.2f}x{chosen}"),
        ):
            print(f"{text:<26}{time_us:>10.1f} {block * max(1, round(18 * time_us / longest)):<18}{after}".rstrip())


def trial_row(trial: Trial, cluster: Cluster) -> dict[str, Any]:
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


def _outcome(summary: StudyEntry) -> str:
    found = summary.recommendation
    if found is None:
        return "-"
    verdict = choose_form(found).proven.verdict
    gain = f" {verdict.speedup:.3f}x" if verdict.decision is Decision.TUNED else ""
    return f"{found.verdict_word(verdict)}{gain}{' STALE' if found.stale else ''}"


def _summary_row(summary: StudyEntry) -> dict[str, Any]:
    study, found = summary.study, summary.recommendation
    return {
        "id": study.id,
        "name": study.name,
        "model": study.workload.name,
        "cluster": study.cluster.name,
        "nodes": study.cluster.nodes,
        "gpus_per_node": study.cluster.gpus_per_node,
        "launcher": study.launcher,
        "simulated": study.simulated,
        "label": study.label,
        "state": study.state.value,
        "trials": summary.trials,
        "verdict": found.table.verdict.to_document() if found else None,
        "updated": study.updated,
    }


def print_evidence(document: dict[str, Any]) -> None:
    """Print a table per arm with its verdict, recomputed from the launches."""
    if mark := ORIGIN_WORDS.get(document["origin"]):
        print(f"demonstration on {mark} timings")
    for arm in document["arms"]:
        print(f"\n{arm['arm']}: {arm['verdict']['decision']}: {arm['verdict']['reason']}")
        if not arm["blocks"] and arm["same"] is None:
            print("no A/B test")
            continue
        print_table(
            (
                "block",
                "default, ms",
                "policy, ms",
                "log ratios",
                "speed-up so far",
                "95 % interval",
                "decision",
            ),
            [
                (
                    str(block["block"] + 1),
                    _joined(block["default_us"], 1e-3, "{:.4g}"),
                    _joined(block["policy_us"], 1e-3, "{:.4g}"),
                    _joined(block["log_ratios"], 1, "{:+.3f}"),
                    f"{block['speedup']:.3f}",
                    f"{block['interval'][0]:.3f} to {block['interval'][1]:.3f}"
                    if all(block["interval"])
                    else "none yet",
                    block["decision"],
                )
                for block in arm["blocks"]
            ],
            numbers=("block", "default, ms", "policy, ms", "log ratios", "speed-up so far"),
        )
        _print_recomputed(arm)
        if over := arm.get("over_today"):
            print(f"over what you run today: {over['verdict']['decision']}: {over['verdict']['reason']}")
            _print_recomputed(over)
    if today := document["today"]:
        names, default = ", ".join(today["variables"]), today["over_today"]
        verdict = default["verdict"]
        print(f"\nNCCL default over what you run today ({names}): {verdict['decision']}: {verdict['reason']}")
        _print_recomputed(default)


def _print_recomputed(judged: Mapping[str, Any]) -> None:
    if judged["same"]:
        print("recomputed: same")
    else:
        print(f"recomputed: DIFFERENT: {judged['recomputed']['decision']}: {judged['recomputed']['reason']}")
        note(f"judged by ncclt {__version__}; another version may judge by other rules")


def _joined(values: Sequence[float], factor: float, form: str) -> str:
    return " ".join(form.format(value * factor) for value in values)
