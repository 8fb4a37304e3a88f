"""Text of a finished study: its summary, and in detail its messages, the gain per part and remarks."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ncclt.cli.options import words_of
from ncclt.cli.output import draw_bar, note, print_bold, print_table
from ncclt.core.budget import MAX_BLOCKS, MIN_BLOCKS, Budget
from ncclt.core.message import format_sizes
from ncclt.deliver.render.delivery import describe_channels
from ncclt.measure.target import Target
from ncclt.nccl.p2p_chunk import default_process_wide

if TYPE_CHECKING:
    from ncclt.core.recommendation import Recommendation
    from ncclt.core.study import Study
    from ncclt.prove.study_summary import MessageRow, StudySummary

_ROWS, _BAR = 20, 3
_TIMES: tuple[Callable[[MessageRow], float], ...] = (lambda row: row.default_us, lambda row: row.tuned_us)


def print_summary(summary: StudySummary, *, again: str, source: str, details: bool = False) -> None:
    """Print the headline and the facts of a study, one line each; at most 12 lines without details.

    Args:
        again: the command that continues an undecided study.
        source: options that name the store, with a space before each.
    """
    print_bold(summary.headline)
    for label, sentence in summary.lines(again=again, source=source, details=details):
        if details and label == "Details":
            continue  # they stand above
        (print_bold if label in ("Use", "Continue") else print)(f"{label + ':':<9} {sentence}")


def print_details(summary: StudySummary, study: Study, rows: Sequence[MessageRow], notes: Sequence[str] = ()) -> None:
    """Print the table of messages, the gain per part, and the remarks on the result.

    Args:
        rows: of its messages, most time per step first.
        notes: further ones, first.
    """
    print_messages(rows, study)
    if summary.parts:
        print()
        _print_parts(summary, study)
    print()
    remarks = (*notes, *summary.notes, summary.other, describe_channels(summary.use.proven.effective))
    for sentence in dict.fromkeys(remarks):
        if sentence and sentence not in (*summary.warnings, *dict(summary.facts).values()):
            note(sentence)


def _print_parts(summary: StudySummary, study: Study) -> None:
    """Print the gain of every part of a merged workload."""
    rows = []
    for part in summary.parts:
        row = (part.name, f"{part.weight:g}", "-", "-", "-", "-")
        if part.default_us is not None and part.policy_us is not None and part.speedup and part.interval:
            low, high = part.interval
            ends = f"{low:.3f} to {high:.3f}" if math.isfinite(high) else "-"
            times = (f"{part.default_us:.1f}", f"{part.policy_us:.1f}")
            row = (part.name, f"{part.weight:g}", *times, f"{part.speedup:.3f}x", ends)
        rows.append((*row, part.note))
    caption = f"in one step of {study.workload.name}: {study.workload.provenance.detail['parts']}"
    if summary.use.form is None and any(part.speedup for part in summary.parts):
        caption += "\nthe policy is not delivered: keeping the NCCL default"
    numbers = ("weight", "default\nµs/step", "policy\nµs/step", "speed-up", "95 % interval")
    print_table(("part", *numbers, ""), rows, caption=caption, numbers=numbers)


def command_again(model: str, target: Target, budget: Budget, source: str, *, searched_enough: bool) -> str:
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


def command_again_of(study: Study, found: Recommendation, source: str) -> str:
    """Return the same from a stored study, which does not keep the options of its launches.

    Args:
        found: its newest revision.
    """
    blocks = max(found.table.verdict.blocks, MAX_BLOCKS)
    if not study.simulated:
        more = f"--blocks {2 * blocks}" if found.is_searched_enough else f"--trials {2 * Budget().trials}"
        return f"the same `ncclt tune` command with {more}"
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
    return command_again(study.workload.name, target, budget, source, searched_enough=found.is_searched_enough)


def print_messages(rows: Sequence[MessageRow], study: Study) -> None:
    """Print default against policy per message; the last line adds all of them up.

    Args:
        rows: most time per step first.
    """
    unit = study.workload.unit
    default_us, policy_us = (sum(row.calls.calls_per_step * us(row) for row in rows) for us in _TIMES)
    # Where nothing is saved in all, bars would draw noise.
    most_us = max(row.saved_us for row in rows) if default_us > policy_us else math.inf
    own = [replace(row.setting, parameters=()) for row in rows]
    sizes = format_sizes(row.calls.message.size_bytes for row in rows[:_ROWS])
    table = [
        (
            f"{row.calls.message.collective} {sizes[row.calls.message.size_bytes]}" + ("~" if row.interpolated else ""),
            f"{row.calls.calls_per_step:g}",
            f"{row.default_us:.1f}",
            f"{row.tuned_us:.1f}",
            f"{row.saved_us:.1f}",
            draw_bar(row.saved_us / most_us, _BAR),
            "NCCL default" if setting.is_default else setting.label,
        )
        for row, setting in zip(rows[:_ROWS], own, strict=False)
    ]
    table.append(
        (f"all, per {unit}", "", f"{default_us:.1f}", f"{policy_us:.1f}", f"{default_us - policy_us:.1f}", "", "")
    )
    caption = []
    if len(rows) > _ROWS:
        rest = sum(row.calls.calls_per_step * row.default_us for row in rows[_ROWS:])
        caption.append(f"{len(rows) - _ROWS} more messages, with {rest / default_us * 100:.1f} % of the time")
    if parameters := dict(p for row in rows for p in row.setting.parameters):
        caption.append("all with " + ", ".join(f"NCCL_{name}={value}" for name, value in parameters.items()))
    if any(row.interpolated for row in rows[:_ROWS]):
        caption.append("~ size not recorded: interpolated (log-log) between its neighbours")
    if study.label:
        caption.append(study.label)
    numbers = (f"calls\nper {unit}", "default\nµs/call", "policy\nµs/call", f"saved\nµs/{unit}")
    print_table(("message", *numbers, "", "setting"), table, caption="\n".join(caption), numbers=numbers)
