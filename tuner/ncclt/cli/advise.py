"""`ncclt advise`: compute and communication of a step, and changes to the job that would shorten it."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ncclt.cli.configuration import storage_url
from ncclt.cli.options import AsJson, Model, spread
from ncclt.cli.render import Column, format_bandwidth, note, print_json, print_table, print_text
from ncclt.core.cluster import Cluster
from ncclt.core.duration import format_duration
from ncclt.core.message import format_bytes
from ncclt.core.option import Option
from ncclt.core.plural import count_noun
from ncclt.core.trial import Measurement, Outcome, TimesOrigin
from ncclt.core.workload import Workload
from ncclt.errors import InputError, UsageError
from ncclt.profile.advice.advice import Advice
from ncclt.profile.advice.advice import advise as predict_changes
from ncclt.profile.advice.alignment import UnalignedMessage, find_unaligned
from ncclt.profile.advice.job import RECORDING, Prediction, recorded_cluster
from ncclt.profile.views.estimate import (
    OPERATIONS,
    Curve,
    CurveKey,
    Estimate,
    MessageTime,
    build_curves,
    compute_seconds,
    estimate,
)
from ncclt.store import open_to_read

if TYPE_CHECKING:
    from ncclt.store import Store

app = typer.Typer(add_completion=False)

_TEST = "ncclt verify --against 'torchrun ... train.py' -- torchrun ... changed.py"

_ROWS = 12
"""Messages of the table; the others are counted."""

_MOST_STUDIES = 20
"""Most studies read, newest first: older ones add little, and each has hundreds of rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOptions:
    """Figures of a step that the recording lacks."""

    step_ms: Annotated[float | None, Option("Time of one step, ms; default: recorded.")] = None
    compute_ms: Annotated[
        float | None, Option("The step without exposed communication, as on one GPU, ms; default: recorded.")
    ] = None
    tflops: Annotated[
        float | None, Option("Model TFLOP/s that one GPU sustains in training, often 40 % of its peak.")
    ] = None
    params: Annotated[float | None, Option("Parameters of the model; default: recorded.")] = None
    tokens_per_step: Annotated[float | None, Option("Tokens of the whole job: sequence length x global batch.")] = None


@app.command()
@spread
def advise(
    *,
    model: Model,
    cluster: Annotated[
        str | None, Option("Name of the cluster; default: only the times of the recording itself.")
    ] = None,
    nodes: Annotated[int | None, Option("Nodes; default: those of the recording, else the cluster's.")] = None,
    gpus_per_node: Annotated[int | None, Option("GPUs per node; default: as with --nodes.")] = None,
    step: StepOptions,
    as_json: AsJson = False,
) -> None:
    """Predict what else would speed up a job.

    The first part needs --cluster: the time of each message, from studies of the cluster or the bandwidth of its links,
    and whether the step is network-bound. The second predicts other buckets, compression, accumulation, sharding and
    numbers of nodes; it needs the step time, recorded or given.
    """
    if cluster is None and (nodes is not None or gpus_per_node is not None):
        raise UsageError("--nodes and --gpus-per-node need --cluster", hint="`ncclt cluster list` shows the names")
    with open_to_read(storage_url()) as store:
        workload = store.workloads.get(model)
        if cluster is None:
            where = recorded_cluster(workload)
        else:
            where = _size_cluster(workload, store.clusters.get(cluster), nodes, gpus_per_node)
        others = _list_other_sizes(where) if cluster else ()
        measured = _read_times(store, where, others) if cluster else MeasuredTimes()
    report = _predict(workload, where, others, measured, step)
    if as_json:
        print_json(report.to_document())
        return
    shape = f"{where.nodes} x {where.gpus_per_node} {where.gpu}"
    print_text(f"{model} on {where.name}, {shape}" if cluster else f"{model} as recorded on {where.world_size} GPUs")
    if report.estimated is not None:
        _print_estimate(workload, report.estimated, report.source, measured)
    _print_unaligned(workload, report.unaligned)
    if report.advice is not None:
        _print_advice(report.advice)
    if (refusal := report.refusal) is not None:
        note(f"no changes predicted: {refusal.message}{f'; {refusal.hint}' if refusal.hint else ''}")
    if measured.simulated:
        note("measured times come from SIMULATED studies")
    for label in measured.recorded:
        note(f"measured times are {label}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Report:
    """Report on a job.

    Attributes:
        estimated: its step on a named cluster; None = no cluster was named.
        source: of the compute in it.
        refusal: why there is no advice.
    """

    workload: Workload
    cluster: Cluster
    measured: MeasuredTimes
    unaligned: tuple[UnalignedMessage, ...]
    estimated: Estimate | None
    source: str
    advice: Advice | None
    refusal: InputError | UsageError | None

    def to_document(self) -> dict[str, Any]:
        """Return the report as JSON."""
        estimated = self.estimated
        return {
            "schema": 1,
            "profile": self.workload.name,
            "whole_file": self.workload.provenance.whole_file,
            "cluster": self.cluster.name,
            "nodes": self.cluster.nodes,
            "gpus_per_node": self.cluster.gpus_per_node,
            "simulated": self.measured.simulated,
            "recorded": list(self.measured.recorded),
            "unaligned": [_document_unaligned(message) for message in self.unaligned],
            "estimate": estimated and _document_estimate(estimated, self.source, self.measured),
            "advice": self.advice and _document_advice(self.advice),
            "no_advice": str(self.refusal or ""),
        }


def _predict(
    workload: Workload, where: Cluster, others: Sequence[Cluster], measured: MeasuredTimes, step: StepOptions
) -> _Report:

    compute_s, source = _find_compute(workload, where, step)
    placed = workload.placed(nodes=where.nodes, gpus_per_node=where.gpus_per_node)
    is_named = where.name != RECORDING
    advice, refusal = None, None
    try:
        if (ranks := workload.provenance.world_size) and where.world_size != ranks:
            raise UsageError(
                f"{workload.name} was recorded on {ranks} GPUs, not on {where.nodes} x {where.gpus_per_node}",
                hint="give --nodes and --gpus-per-node of the recording; the table predicts other numbers of nodes",
            )
        advice = predict_changes(
            workload,
            where,
            measured=measured.curves,
            step_us=None if step.step_ms is None else step.step_ms * 1e3,
            compute_us=compute_s * 1e6 if compute_s and source != _RECORDED else None,
            others=others,
        )
    except (InputError, UsageError) as error:
        # The times of the messages are an answer by themselves.
        if not is_named:
            raise
        refusal = error
    if advice is not None and not is_named:
        hint = "using the recorded times of calls; --cluster NAME adds predictions for other numbers of nodes"
        advice = replace(advice, notes=(*advice.notes, hint))
    return _Report(
        workload=workload,
        cluster=where,
        measured=measured,
        # Simulated times ignore alignment.
        unaligned=find_unaligned(
            placed,
            () if measured.simulated else measured.measurements,
            origin=TimesOrigin.RECORDED if measured.recorded else TimesOrigin.MEASURED,
        ),
        estimated=estimate(placed, where, compute_s=compute_s, measured=measured.curves) if is_named else None,
        source=source,
        advice=advice,
        refusal=refusal,
    )


def _size_cluster(workload: Workload, cluster: Cluster, nodes: int | None, gpus_per_node: int | None) -> Cluster:
    """Return the part of the cluster on which the job was recorded, or is to run."""
    ranks = workload.provenance.world_size
    if ranks and nodes is None and gpus_per_node is None:
        gpus_per_node = min(ranks, cluster.gpus_per_node)
        nodes = -(-ranks // gpus_per_node)
    return cluster.sized(nodes=nodes, gpus_per_node=gpus_per_node)


def _list_other_sizes(where: Cluster) -> tuple[Cluster, ...]:
    """Return half as many and twice as many nodes, where the cluster can have them."""
    fewer = (where.sized(nodes=where.nodes // 2),) if where.nodes > 1 else ()
    try:
        return (*fewer, where.sized(nodes=where.nodes * 2))
    except UsageError:  # it describes no network
        return fewer


_RECORDED = "recorded: step time without exposed communication, on the GPUs of the recording"


def _find_compute(workload: Workload, cluster: Cluster, step: StepOptions) -> tuple[float | None, str]:
    """Return the compute time of one step, s, and where it comes from; None = not known."""
    flops = {"--tflops": step.tflops, "--params": step.params, "--tokens-per-step": step.tokens_per_step}
    with_flops = any(value is not None for value in flops.values())
    if workload.provenance.whole_file:
        if step != StepOptions():
            raise UsageError(
                f"cannot compare with the computation of a step: {workload.name} has no known number of steps",
                hint="import it again with `ncclt profile import --steps N`",
            )
        return None, "the profile has no known number of steps"
    for option, value in (("--step-ms", step.step_ms), ("--compute-ms", step.compute_ms)):
        if value is not None and not (value > 0 and math.isfinite(value)):
            raise UsageError(f"{option} must be above 0, not {value:g}")
    if step.compute_ms is not None:
        if with_flops:
            raise UsageError("--compute-ms is the result of --tflops, --params and --tokens-per-step", hint="give one")
        return step.compute_ms / 1e3, "given"
    if with_flops:
        recorded = workload.provenance.detail.get("parameters", "")
        parameters = step.params if step.params is not None else float(recorded) if recorded.isdecimal() else None
        tflops, tokens = step.tflops, step.tokens_per_step
        if tflops is None or parameters is None or tokens is None:
            missing = [option for option, value in {**flops, "--params": parameters}.items() if value is None]
            raise UsageError(f"{' and '.join(missing)} missing", hint=f"{', '.join(flops)} belong together")
        seconds = compute_seconds(parameters=parameters, tokens_per_step=tokens, gpus=cluster.world_size, tflops=tflops)
        work = OPERATIONS * parameters * tokens / cluster.world_size / 1e12
        return seconds, (
            f"{OPERATIONS} operations per parameter and token: {parameters:,.0f} parameters x {tokens:,.0f} tokens / "
            f"{cluster.world_size} GPUs = {work:,.0f} TFLOP, at {tflops:g} TFLOP/s"
        )
    step_us = step.step_ms * 1e3 if step.step_ms is not None else workload.step_time_us
    if step_us and workload.exposed_us is not None and workload.exposed_us < step_us:
        return (step_us - workload.exposed_us) / 1e6, _RECORDED
    return None, "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredTimes:
    """Times of the NCCL default on a cluster, also for other numbers of nodes than the job's.

    Attributes:
        measurements: of the default on the cluster of the job.
        curves: median time by size, for each kind of message.
        studies: names of the studies on the cluster of the job, newest first.
        simulated: some come from a model.
        recorded: `recorded: SYSTEM, SOURCE` of replayed ones.
    """

    measurements: tuple[Measurement, ...] = ()
    curves: Mapping[CurveKey, Curve] = field(default_factory=dict)
    studies: tuple[str, ...] = ()
    simulated: bool = False
    recorded: tuple[str, ...] = ()

    @property
    def origin(self) -> str:
        """Return the origin of the times in one word."""
        return "simulated" if self.simulated else "recorded" if self.recorded else "measured"


def _read_times(store: Store, where: Cluster, others: Sequence[Cluster]) -> MeasuredTimes:
    """Collect the successful launches of the NCCL default from the studies of a cluster's fingerprint.

    Replayed studies count only where none was measured in place, and simulated ones where there is no other.
    """
    measurements: dict[Cluster, dict[str, list[Measurement]]] = {}
    labels: dict[str, None] = {}
    is_simulated = False
    for cluster in (where, *others):
        fitting = [
            summary.study
            for summary in store.studies.page(limit=500, cluster=cluster.name).items
            if not cluster.fingerprint().mismatches(summary.study.cluster.fingerprint())
        ]
        real = [study for study in fitting if not study.label] or [study for study in fitting if not study.simulated]
        by_study = {
            study.name: [
                measurement
                for trial in store.trials.find(study.id)
                if trial.is_default and trial.result.outcome is Outcome.OK
                for measurement in trial.result.measurements
            ]
            for study in (real or fitting)[:_MOST_STUDIES]
        }
        measurements[cluster] = {name: values for name, values in by_study.items() if values}
        is_simulated = is_simulated or bool(measurements[cluster] and not real)
        if measurements[cluster] and real and real[0].label:
            labels[real[0].label] = None
    return MeasuredTimes(
        measurements=tuple(itertools.chain(*measurements[where].values())),
        curves=build_curves(itertools.chain(*(values for each in measurements.values() for values in each.values()))),
        studies=tuple(measurements[where]),
        simulated=is_simulated,
        recorded=tuple(labels),
    )


def _document_estimate(estimated: Estimate, source: str, measured: MeasuredTimes) -> dict[str, Any]:
    return {
        "compute_s": estimated.compute_s,
        "compute_source": source,
        "communication_s": estimated.communication_s,
        "links_s": estimated.links_s,
        "bound": {None: None, True: "network", False: "compute"}[estimated.is_network_bound],
        "busbw_gbps": estimated.bus_gbps,
        "turning_busbw_gbps": estimated.turning_gbps,
        "studies": list(measured.studies),
        "messages": [
            {
                **row.message.to_document(),
                "calls_per_step": row.calls_per_step,
                "time_us": row.time_us,
                "source": _name_source(row, measured),
                "link_gbps": row.link_gbps,
            }
            for row in estimated.messages
        ],
    }


def _name_source(row: MessageTime, measured: MeasuredTimes) -> str:
    return measured.origin if row.source == "measured" else row.source


def _print_estimate(profile: Workload, estimated: Estimate, source: str, measured: MeasuredTimes) -> None:

    print_table(
        estimated.messages[:_ROWS],
        [
            Column("collective", lambda row: row.message.collective.value),
            Column("size", lambda row: format_bytes(row.message.size_bytes)),
            Column("group", lambda row: row.message.group_size),
            Column(f"calls per {profile.unit}", lambda row: float(row.calls_per_step)),
            Column("µs per call", lambda row: row.time_us),
            Column(f"ms per {profile.unit}", lambda row: row.time_us * row.calls_per_step / 1e3),
            Column("ring limit, GB/s", lambda row: row.link_gbps, drop=1),
            Column("from", lambda row: _name_source(row, measured), drop=2),
        ],
    )
    if len(estimated.messages) > _ROWS:
        print_text(f"... and {len(estimated.messages) - _ROWS} more messages")
    times = "NCCL's cost model with nominal links (no study of this cluster)"
    if measured.studies:
        kind = "SIMULATED, not measured" if measured.simulated else ", ".join(measured.recorded) or "measured"
        studies = count_noun(len(measured.studies), "study", "studies")
        times = f"{studies} with the NCCL default ({kind}), else NCCL's cost model"
    print_text(f"Times: {times}")
    average = f"average bus bandwidth {format_bandwidth(estimated.bus_gbps)}"
    print_text(f"Communication: {_format_seconds(estimated.communication_s)} {profile.per}, {average}")
    print_text(f"  expected from rings at nominal link bandwidth: {_format_seconds(estimated.links_s)}")
    if estimated.compute_s is None:
        ask = "unknown; give --compute-ms, or --tflops, --params and --tokens-per-step"
        print_text(f"Compute: {f'not comparable: {source}' if profile.provenance.whole_file else ask}")
        return
    longest = max(estimated.compute_s, estimated.communication_s)
    overlap = f"{_format_seconds(longest)}/step with full overlap"
    none = f"{_format_seconds(estimated.compute_s + estimated.communication_s)} with none"
    print_text(f"Compute: {_format_seconds(estimated.compute_s)} per step ({source})")
    print_text(f"{'Network' if estimated.is_network_bound else 'Compute'}-bound: {overlap}, {none}")
    print_text(f"Network-bound below {format_bandwidth(estimated.turning_gbps or 0.0)} bus bandwidth")


def _format_seconds(value: float) -> str:
    return format_duration(value * 1e6)


def _document_unaligned(unaligned: UnalignedMessage) -> dict[str, Any]:
    message, times = unaligned.calls.message, unaligned.times
    return {
        **message.to_document(),
        "calls_per_step": unaligned.calls.calls_per_step,
        "bytes_per_rank": message.rank_bytes,
        "padded_bytes": message.padded_bytes,
        "padding_elements_per_rank": unaligned.padding,
        "begins_unaligned": message.begins_unaligned,
        "time_us": times.exact_us if times else None,
        "padded_time_us": times.padded_us if times else None,
        "padded_is_interpolated": not times.padded_launches if times else None,
        "speedup": unaligned.speedup,
        "saved_us_per_step": unaligned.saved_us,
        "gain": unaligned.gain,
    }


def _print_unaligned(placed: Workload, unaligned: Sequence[UnalignedMessage]) -> None:
    """Print the messages to pad, those with equal words about the gain together."""
    to_pad = [message for message in unaligned if message.calls.message.begins_unaligned]
    if to_pad:
        share = sum(message.calls.bytes_per_step for message in to_pad) / placed.bytes_per_step * 100
        print_text(
            f"Alignment: in {count_noun(len(to_pad), 'message')} ({share:.3g} % of the bytes), the bytes per rank are "
            "not a multiple of 16. NCCL (Simple, LL128) copies these more slowly. Pad them:"
        )
    for row in to_pad[:_ROWS]:
        message, elements = row.calls.message, count_noun(row.padding, "element")
        size = f"{message.collective} of {message.size_bytes:,} B {message.dtype}, {message.rank_bytes:,.0f} B per rank"
        print_text(f"  {size}: add {elements} per rank{f'; {row.gain}' if row.times else ''}")
    if len(to_pad) > _ROWS:
        print_text(f"  ... and {count_noun(len(to_pad) - _ROWS, 'more message')}")
    unknown_gains = (f"{row.calls.message.collective}: {row.gain}" for row in to_pad[:_ROWS] if not row.times)
    for sentence in dict.fromkeys(unknown_gains):
        print_text(f"  {sentence}")
    by_gain: dict[str, list[str]] = defaultdict(list)
    for row in unaligned:
        if not row.calls.message.begins_unaligned:
            by_gain[row.gain].append(row.calls.message.collective)
    for gain, collectives in by_gain.items():
        note(f"alignment of {count_noun(len(collectives), 'size')} of {', '.join(sorted({*collectives}))}: {gain}")


def _document_advice(advice: Advice) -> dict[str, Any]:
    job = advice.job
    return {
        "predicted": True,
        "sharding": advice.sharding,
        "step": {"recorded": job.step_us is not None, **_document_times(advice.as_is)},
        "model_step_ms": advice.model_us / 1e3,
        "compute_ms": job.compute_us / 1e3,
        "exposed_ms": advice.exposed_us / 1e3,
        "changes": [
            {
                "change": change.name,
                "code": change.code,
                "lossy": change.lossy,
                "note": change.why if change.prediction else "",
                "not_predicted": "" if change.prediction else change.why,
                **_document_times(change.prediction),
                "speedup": advice.as_is.step_us / change.prediction.step_us if change.prediction else None,
            }
            for change in advice.changes
        ],
        "notes": list(advice.notes),
        "test_with": _TEST,
    }


def _document_times(prediction: Prediction | None) -> dict[str, float | None]:
    if prediction is None:
        return {"step_ms": None, "low_ms": None, "high_ms": None}
    return {name.replace("_us", "_ms"): time_us / 1e3 for name, time_us in asdict(prediction).items()}


def _print_advice(advice: Advice) -> None:
    job, step_us = advice.job, advice.as_is.step_us
    print_text(
        f"Exposed communication: {format_duration(advice.exposed_us)} of {format_duration(step_us)} per step "
        f"({advice.exposed_us / step_us * 100:.1f} %{'' if job.step_us is not None else ', predicted'}); no NCCL "
        "setting can gain more"
    )
    explained_us = max(0.0, advice.model_us - job.compute_us)
    if job.step_us is not None and explained_us < 0.8 * advice.exposed_us:
        print_text(
            f"  The messages and the backward pass explain about {explained_us / 1e3:.2g} ms of it. None of these "
            "changes fix the rest, often CPU launch overhead."
        )
    rows = [(number, change, change.prediction) for number, change in enumerate(advice.changes, 1) if change.prediction]
    print_table(
        rows,
        [
            Column("", lambda row: str(row[0]), right=True),
            Column("PREDICTED", lambda row: row[1].name),
            Column("step", lambda row: f"{row[2].step_us / 1e3:.1f} ms", right=True),
            Column("range", lambda row: f"{row[2].low_us / 1e3:.1f} to {row[2].high_us / 1e3:.1f}", right=True),
            Column("speed-up", lambda row: f"{step_us / row[2].step_us:.2f}x", right=True),
            Column("", lambda row: "lossy" if row[1].lossy else ""),
        ],
    )
    if any(change.lossy for _, change, _ in rows):
        print_text("lossy: rounds gradients; check the loss before you keep it")
    print_text("To try:")
    for number, change, _ in rows:
        print(f"{number:3}  " + change.code.replace("; ", "\n     "))
        if change.why:
            print_text(f"       {change.why}")
    for change in advice.changes:
        if change.prediction is None:
            print_text(f"not predicted: {change.name}: {change.why}")
    for sentence in advice.notes:
        note(sentence)
    print(f"Measure one on real steps:\n  {_TEST}")
