"""The content of the page of one trial, computed before any HTML."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from ncclt.core.study import Study, Trial
from ncclt.core.trial import Outcome
from ncclt_api.pages.charts import Axis, Chart, ChartTable, Line
from ncclt_api.pages.trial_table import message_words
from ncclt_api.pages.wording import NONE, format_us

MOST_REPEATS = 50
"""Other trials of the setting that are listed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForcedLine:
    """What was requested for one message, and what ran.

    Attributes:
        message: what was sent, as text.
        requested: of the trial, as text.
        forced: what of it is legal for the collective, as text.
        used: what is known of NCCL's choice, as text.
        time_us: median time of a call, µs; None = not measured.
        busbw_gbps: at that time, 1e9 bytes/s; None = not measured.
        wrong: elements that came out wrong; None = not checked or not measured.
    """

    message: str
    requested: str
    forced: str
    used: str
    time_us: float | None
    busbw_gbps: float | None
    wrong: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialView:
    """The content of the page.

    Attributes:
        how: by what the setting was forced, as text.
        samples: every sample relative to the median of its message; None = nothing was measured.
        lines: each message of the workload that the trial was for.
        repeats: other trials of this setting, by number.
        last: the highest number is below this.
    """

    study: Study
    trial: Trial
    how: str
    samples: Chart | None
    lines: tuple[ForcedLine, ...]
    repeats: tuple[Trial, ...]
    last: int


def trial_view(study: Study, trial: Trial, repeats: Sequence[Trial], *, total: int) -> TrialView:
    """Return the content of the page of a trial.

    Args:
        study: of the trial.
        trial: with its measurements.
        repeats: other trials of its setting.
        total: number of trials of the study.
    """
    return TrialView(
        study=study,
        trial=trial,
        how=_how(study, trial),
        samples=_strips(trial),
        lines=_lines(study, trial),
        repeats=tuple(repeats),
        last=total - 1,
    )


def _how(study: Study, trial: Trial) -> str:
    if study.label:
        return "Nothing was launched: the times are " + ("of a model." if study.simulated else "recorded.")
    by = "The tuner plugin was loaded to force it; " if trial.result.by_plugin else "Environment variables forced it; "
    ranks = "the ranks were already running." if trial.result.persistent else "the ranks were started for this trial."
    return by + ranks


def _lines(study: Study, trial: Trial) -> tuple[ForcedLine, ...]:
    measured = {one.message: one for one in trial.result.measurements}
    messages = [one.message for one in study.workload.messages if not measured or one.message in measured]
    lines = []
    for message in messages:
        wanted = trial.setting_for(message)
        one = measured.get(message)
        lines.append(
            ForcedLine(
                message=message_words(message),
                requested=wanted.label,
                forced=wanted.applied_to(message.collective, version=study.cluster.version).label,
                used=_used(study, trial, is_measured=one is not None),
                time_us=one.time_us if one else None,
                busbw_gbps=one.busbw_gbps if one else None,
                wrong=one.wrong if one else None,
            )
        )
    return tuple(lines)


def _used(study: Study, trial: Trial, *, is_measured: bool) -> str:
    """Say what is known of NCCL's choice: only a plugin that was loaded can have seen another one."""
    if trial.result.outcome is Outcome.SUBSTITUTED:
        return "another choice of NCCL: see the output"
    if not is_measured:
        return "not measured"
    if study.label:
        return "as forced, in the model" if study.simulated else "as recorded"
    return "no other choice was reported" if trial.result.by_plugin else "not observed"


def _strips(trial: Trial) -> Chart | None:
    """Draw the samples of each message as a strip, relative to their median: one axis serves 4 KiB and 1 GiB."""
    measured = trial.result.measurements
    if all(len(one.samples_us) < 2 for one in measured):
        return None  # it would be a dot at 1 for each message
    x, y, notes, rows = [], [], [], []
    for place, one in enumerate(measured, start=1):
        label, count = message_words(one.message), len(one.samples_us)
        # Dots of a strip stand side by side, in the order in which they were taken.
        x += [place + 0.6 * (at + 0.5) / count - 0.3 for at in range(count)]
        y += [sample / one.time_us if one.time_us else None for sample in one.samples_us]
        notes += [f"{label}: {format_us(sample)} µs" for sample in one.samples_us]
        spread = statistics.stdev(one.samples_us) / one.time_us if count > 1 and one.time_us else None
        least, most = min(one.samples_us), max(one.samples_us)
        share = f"{100 * spread:.1f} %" if spread is not None else NONE
        rows.append((label, str(count), format_us(least), format_us(one.time_us), format_us(most), share))
    dots = Line(label="sample", tone="policy", mark="dot", x=x, y=y, notes=notes)
    return Chart(
        id="samples-chart",
        title="Samples of each message",
        description="Each dot is one sample, divided by the median of its message; strips in the order of the table.",
        x=Axis(label="message", unit="count", low=0.5, high=len(measured) + 0.5),
        y=Axis(label="time over its median", unit="ratio"),
        lines=[dots],
        table=ChartTable(
            columns=("Message", "Samples", "Least µs", "Median µs", "Most µs", "Standard deviation"), rows=rows
        ),
    )
