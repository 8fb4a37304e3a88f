"""Tune a workload on real NCCL over one GPU: ncclt's search, its proof and the verdict, whatever it is.

    python bench/gpu/tuned.py --output FOLDER [--model bert] [--minutes 8] [--buffsizes 8388608]

Search, proof and verdict are those of `ncclt tune`; only the place where trials run is this folder's. The study is kept
in FOLDER/study.db and the same command goes on with it. Where the verdict is `tuned`, the table is written, given to
NCCL as a job would get it, and attested by NCCL's own log. Exit code 0 with a verdict, 3 if the time ended before.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import optuna
from landscape import channels_found, grid, workload_of

from live import UNSET, LiveRanks, add_options, place_of
from ncclt.core.attestation import Attestation, Form
from ncclt.core.budget import Budget
from ncclt.core.message import format_bytes
from ncclt.core.recommendation import Decision, Recommendation
from ncclt.core.study import Study, Trial
from ncclt.deliver.log_evidence import attest_files, policy_from_recommendation
from ncclt.deliver.render.delivery import deliver_table
from ncclt.deliver.render.table import render_table
from ncclt.errors import NccltError
from ncclt.measure.testbed import Testbed
from ncclt.pipeline.tune import MessageRow, TuneRequest, TuneResult, tune
from ncclt.prove.verdict import Pairs, format_interval
from ncclt.search.loop import Progress
from ncclt.store import open_store
from ncclt.store.store import utc_now

SEARCH_SHARE = 0.5
"""Of the minutes; the rest is for finalists and proof."""

NOTES = (
    "several ranks on one GPU: this tries ncclt on real NCCL and says nothing about any cluster",
    "every setting was forced by the tuner table, also where variables are to say it: their verdict is an estimate",
)


class Printing:
    """Tells what happens (see ncclt.pipeline.tune.Watcher)."""

    def opened(self, study: Study, resumed: int) -> None:
        print(f"study {study.name}, {resumed} trials before", flush=True)

    def searched(self, progress: Progress) -> None:
        self._trial("search", progress.trial, f"{progress.default_us:.0f} -> {progress.policy_us:.0f} µs")

    def confirmed(self, trial: Trial, done: int, total: int) -> None:
        self._trial("confirm", trial, f"{done} of {total}")

    def proved(self, trial: Trial, blocks: int, pairs: Pairs | None) -> None:
        gain = "" if pairs is None else f", {format_interval(pairs)} before it"
        self._trial(f"prove {trial.arm}", trial, f"block {blocks + 1}{gain}")

    @staticmethod
    def _trial(phase: str, trial: Trial, note: str) -> None:
        print(f"{phase:16} {trial.label:36} {trial.result.outcome:8} {note} {trial.result.detail}", flush=True)


def run(options: argparse.Namespace, started: float) -> tuple[TuneResult, Attestation | None]:
    """Tune, and where something was found, deliver it and look whether it took effect.

    Raises:
        NccltError: the ranks do not open, or the default fails.
    """
    workload = workload_of(options.model)
    sizes = [c.message.size_bytes for c in workload.messages if c.message.size_bytes <= options.largest]
    place = place_of(options, room_bytes=max(sizes, default=1 << 20))
    limit_s = 60 * options.minutes
    channels = channels_found(place)
    with (
        open_store(f"sqlite:///{(options.output / 'study.db').absolute()}") as store,
        LiveRanks(replace(place, output=place.output / "tuned")) as ranks,
    ):
        sent = [c.message for c in workload.messages if ranks.covers(c.message)]
        settings = grid(sent, ranks, most_channels=channels, buffsizes=options.buffsizes)
        testbed = Testbed(
            runner=ranks, reason="ranks on one GPU", covers=ranks.covers, recorded=tuple(settings), notes=NOTES
        )
        request = TuneRequest(
            workload=workload,
            budget=Budget(
                trials=options.trials,
                seconds=SEARCH_SHARE * limit_s,
                blocks=options.blocks,
                process_wide=(),
                seed=options.seed,
            ),
        )
        result = tune(
            request,
            testbed,
            store,
            watcher=Printing(),
            interrupted=lambda: "the time is over" if time.monotonic() - started > limit_s else "",
            clock=time.monotonic,
            now=utc_now,
        )
        messages = [row.calls.message for row in result.messages]
    recommendation = result.recommendation
    if recommendation is None or recommendation.table.verdict.decision is not Decision.TUNED:
        return result, None
    table = options.output / "table.csv"
    table.write_text(render_table(deliver_table(recommendation)))
    variables = {f"NCCL_{name}": str(value) for name, value in recommendation.table.effective.parameters}
    reports = place.output / "delivered" / "reports"
    environ = {
        **variables,
        "NCCLT_POLICY_SHM": UNSET,
        "NCCLT_POLICY": str(table.absolute()),
        "NCCLT_PLUGIN_REPORT": str(reports),
    }
    with LiveRanks(replace(place, logged=True, output=place.output / "delivered", environ=environ)) as job:
        job.start()
        answer = job.ask("check", place.limit_s, messages=[asdict(m) for m in messages])
        log = job.folder / "nccl-0-0.log"
    if "wrong" not in answer or any(answer["wrong"]):
        raise NccltError(f"with the table delivered: {answer}", hint=f"see {job.folder}")
    files = [*sorted(reports.glob("*.jsonl")), log]
    created = datetime.now(UTC).isoformat(timespec="seconds")
    return result, attest_files(files, policy_from_recommendation(recommendation, Form.TABLE), created=created)


def document(result: TuneResult, attested: Attestation | None) -> dict[str, Any]:
    """Return what came out, as one JSON object."""
    recommendation = result.recommendation
    return {
        "study": result.study.name,
        "stop": result.stop,
        "trials": len(result.trials),
        "recommendation": None if recommendation is None else recommendation.to_document(),
        "messages": [_row(row) for row in result.messages],
        "attestation": None if attested is None else attested.to_document(),
        "notes": list(result.notes),
    }


def _row(row: MessageRow) -> dict[str, Any]:
    message = row.calls.message
    return {
        "message": f"{message.collective} {format_bytes(message.size_bytes)}",
        "calls_per_step": row.calls.calls_per_step,
        "default_us": row.default_us,
        "tuned_us": row.tuned_us,
        "setting": row.setting.label,
    }


def verdict_lines(recommendation: Recommendation) -> list[str]:
    """Return the verdict on the table and on what variables can say."""
    lines = []
    for form, policy_verdict in (("table", recommendation.table), ("variables", recommendation.variables)):
        if policy_verdict is not None:
            verdict = policy_verdict.verdict
            low, high = verdict.interval
            lines.append(
                f"{form}: {verdict.decision}: speed-up {verdict.speedup:.3f} ({low:.3f} to {high:.3f}), "
                f"{verdict.blocks} blocks, {verdict.default_us:.0f} -> {verdict.policy_us:.0f} µs per step; "
                f"{verdict.reason}"
            )
    return lines


def main(argv: Sequence[str] | None = None) -> int:
    started = time.monotonic()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--model", default="bert", help="a shipped workload (default bert)")
    parser.add_argument("--minutes", type=float, default=8.0, help="no trial begins after these (default 8)")
    parser.add_argument("--trials", type=int, default=60, help="launches of the search at most (default 60)")
    parser.add_argument("--blocks", type=int, default=16, help="blocks at most (default 16)")
    parser.add_argument("--largest", type=int, default=1 << 30, help="leave larger messages out (bytes)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--buffsizes",
        default="",
        help="values of NCCL_BUFFSIZE to search as well, with commas",
        type=lambda text: tuple(int(word) for word in text.split(",") if word),
    )
    options = parser.parse_args(argv)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        result, attested = run(options, started)
    except NccltError as error:
        print(f"bench/gpu/tuned.py: {error.message}; {error.hint or ''}", file=sys.stderr)
        return 2
    (Path(options.output) / "tuned.json").write_text(json.dumps(document(result, attested), indent=1) + "\n")
    print(f"\n{len(result.trials)} trials; the search ended: {result.stop}")
    if result.recommendation is None:
        print("no verdict: the time ended before the proof; the same command goes on")
        return 3
    for row in result.messages:
        shown = _row(row)
        print(f"{shown['message']:28} {row.default_us:10.1f} -> {row.tuned_us:10.1f} µs  {shown['setting']}")
    print("\n".join(verdict_lines(result.recommendation)))
    if attested is not None:
        print(f"delivered as a table: {attested.effect}: {attested.reason}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
