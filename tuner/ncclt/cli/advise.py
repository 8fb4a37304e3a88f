"""`ncclt advise`: compute and communication of a step, and changes to the job that would shorten it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ncclt.cli.completion import cluster_names
from ncclt.cli.configuration import storage_url
from ncclt.cli.options import AsJson, Model, spread
from ncclt.cli.output import note, print_json, print_table
from ncclt.core.duration import format_duration
from ncclt.core.option import Option
from ncclt.core.plural import count_noun
from ncclt.core.trial import Measurement, Outcome, TimesOrigin
from ncclt.errors import InputError, UsageError
from ncclt.profile.views.estimate import OPERATIONS, Curve, CurveKey, build_curves, compute_seconds

if TYPE_CHECKING:
    from ncclt.core.cluster import Cluster
    from ncclt.core.study import Study
    from ncclt.core.workload import Workload
    from ncclt.profile.advice.advice import Advice
    from ncclt.profile.advice.alignment import UnalignedMessage
    from ncclt.profile.advice.job import Prediction
    from ncclt.profile.views.estimate import Estimate, MessageTime
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
        str | None,
        typer.Option(
            help="Name of the cluster; default: only the times of the recording itself.", autocompletion=cluster_names
        ),
    ] = None,
    nodes: Annotated[
        int | None, typer.Option(help="Nodes; default: those of the recording, else the cluster's.")
    ] = None,
    gpus_per_node: Annotated[int | None, typer.Option(help="GPUs per node; default: as with --nodes.")] = None,
    given: StepOptions,
    as_json: AsJson = False,
) -> None:
    """Predict what else would speed up a job.

    The first part needs --cluster: the time of each message, from studies of the cluster or the bandwidth of its links,
    and whether the step is network-bound. The second predicts other buckets, compression, accumulation, sharding and
    numbers of nodes; it needs the step time, recorded or given.
    """
    from ncclt.profile.advice.advice import advise as predict_changes
    from ncclt.profile.advice.alignment import find_unaligned
    from ncclt.profile.advice.call_times import recorded_cluster
    from ncclt.profile.views.estimate import estimate
    from ncclt.store import open_to_read

    if cluster is None and (nodes is not None or gpus_per_node is not None):
        raise UsageError("--nodes and --gpus-per-node need --cluster", hint="`ncclt cluster list` shows the names")
    with open_to_read(storage_url()) as store:
        workload = store.workloads.get(model)
        where = (
            recorded_cluster(workload)
            if cluster is None
            else _sized(workload, store.clusters.get(cluster), nodes, gpus_per_node)
        )
        others = _others(where) if cluster else ()
        found = [_measured_times(store, one) for one in (where, *others)] if cluster else []
    compute_s, source = _compute(workload, where, given)
    estimated = None
    placed = workload.placed(nodes=where.nodes, gpus_per_node=where.gpus_per_node)
    # Simulated times ignore alignment.
    real = found[0].measurements if found and not found[0].simulated else ()
    unaligned = find_unaligned(
        placed, real, origin=TimesOrigin.RECORDED if found and found[0].recorded else TimesOrigin.MEASURED
    )
    if cluster is not None:
        estimated = estimate(placed, where, compute_s=compute_s, measured=found[0].curves)
    asked = given.compute_ms is not None or given.tflops is not None
    advice, refusal = None, None
    try:
        if (ranks := workload.provenance.world_size) and where.world_size != ranks:
            raise UsageError(
                f"{workload.name} was recorded on {ranks} GPUs, not on {where.nodes} x {where.gpus_per_node}",
                hint="give --nodes and --gpus-per-node of the recording; the table predicts other numbers of nodes",
            )
        every = {key: curve for one in found for key, curve in one.curves.items()}
        advice = predict_changes(
            workload,
            where,
            measured=every,
            step_us=None if given.step_ms is None else given.step_ms * 1e3,
            compute_us=compute_s * 1e6 if asked and compute_s is not None else None,
            others=others,
        )
    except (InputError, UsageError) as error:
        # The times of the messages are an answer by themselves.
        if estimated is None:
            raise
        refusal = error
    if cluster is None and advice is not None:
        said = "using the recorded times of calls; --cluster NAME adds predictions for other numbers of nodes"
        advice = replace(advice, notes=(*advice.notes, said))
    simulated = any(one.simulated for one in found)
    recorded = tuple(dict.fromkeys(one.recorded for one in found if one.recorded))
    if as_json:
        print_json(
            {
                "schema": 1,
                "profile": workload.name,
                "whole_file": workload.provenance.whole_file,
                "cluster": where.name,
                "nodes": where.nodes,
                "gpus_per_node": where.gpus_per_node,
                "simulated": simulated,
                "recorded": list(recorded),
                "unaligned": [_unaligned_document(one) for one in unaligned],
                "estimate": None if estimated is None else _estimate_document(estimated, source, found[0]),
                "advice": None if advice is None else _advice_document(advice),
                "no_advice": str(refusal or ""),
            }
        )
        return
    shape = f"{where.nodes} x {where.gpus_per_node} {where.gpu}"
    print(f"{model} on {where.name}, {shape}" if cluster else f"{model} as recorded on {where.world_size} GPUs")
    if estimated is not None:
        _print_estimate(workload, estimated, source, found[0])
    _print_unaligned(placed, unaligned)
    if advice is not None:
        _print_advice(advice)
    if refusal is not None:
        note(f"no changes predicted: {refusal.message}{f'; {refusal.hint}' if refusal.hint else ''}")
    if simulated:
        note("measured times come from SIMULATED studies")
    for label in recorded:
        note(f"measured times are {label}")


def _sized(workload: Workload, cluster: Cluster, nodes: int | None, gpus_per_node: int | None) -> Cluster:
    """Return the part of the cluster on which the job was recorded, or is to run."""
    recorded = workload.provenance.world_size
    if recorded and nodes is None and gpus_per_node is None:
        gpus_per_node = min(recorded, cluster.gpus_per_node)
        nodes = -(-recorded // gpus_per_node)
    return cluster.sized(nodes=nodes, gpus_per_node=gpus_per_node)


def _others(where: Cluster) -> tuple[Cluster, ...]:
    """Return half as many and twice as many nodes, where the cluster can have them."""
    fewer = (where.sized(nodes=where.nodes // 2),) if where.nodes > 1 else ()
    try:
        return (*fewer, where.sized(nodes=where.nodes * 2))
    except UsageError:  # it describes no network
        return fewer


def _advice_document(advice: Advice) -> dict[str, Any]:
    job = advice.job
    return {
        "predicted": True,
        "sharding": advice.sharding,
        "step": {"recorded": job.step_us is not None, **_times(advice.as_is)},
        "model_step_ms": advice.model_us / 1e3,
        "compute_ms": job.compute_us / 1e3,
        "exposed_ms": advice.exposed_us / 1e3,
        "changes": [
            {
                "change": one.name,
                "code": one.code,
                "lossy": one.lossy,
                "note": one.why if one.prediction else "",
                "not_predicted": "" if one.prediction else one.why,
                **(_times(one.prediction) if one.prediction else {"step_ms": None, "low_ms": None, "high_ms": None}),
                "speedup": advice.as_is.step_us / one.prediction.step_us if one.prediction else None,
            }
            for one in advice.changes
        ],
        "notes": list(advice.notes),
        "test_with": _TEST,
    }


def _unaligned_document(one: UnalignedMessage) -> dict[str, Any]:
    message = one.calls.message
    return {
        **message.to_document(),
        "calls_per_step": one.calls.calls_per_step,
        "bytes_per_rank": message.rank_bytes,
        "padded_bytes": message.padded_bytes,
        "padding_elements_per_rank": one.padding,
        "begins_unaligned": one.calls.message.begins_unaligned,
        "time_us": one.times.exact_us if one.times else None,
        "padded_time_us": one.times.padded_us if one.times else None,
        "padded_is_interpolated": not one.times.padded_launches if one.times else None,
        "speedup": one.speedup,
        "saved_us_per_step": one.saved_us,
        "gain": one.gain,
    }


def _print_unaligned(placed: Workload, unaligned: Sequence[UnalignedMessage]) -> None:
    """Print the messages to pad, those with equal words about the gain together."""
    parts = [one for one in unaligned if one.calls.message.begins_unaligned]
    if parts:
        share = sum(one.calls.bytes_per_step for one in parts) / placed.bytes_per_step * 100
        print(
            f"Alignment: in {count_noun(len(parts), 'message')} ({share:.3g} % of the bytes), the bytes per rank are "
            "not a multiple of 16. NCCL (Simple, LL128) copies these more slowly. Pad them:"
        )
    gains: dict[str, None] = {}
    for one in parts[:_ROWS]:
        message, elements = one.calls.message, count_noun(one.padding, "element")
        size = f"{message.collective} of {message.size_bytes:,} B {message.dtype}, {message.rank_bytes:,.0f} B per rank"
        print(f"  {size}: add {elements} per rank{f'; {one.gain}' if one.times else ''}")
        gains |= {} if one.times else {f"{message.collective}: {one.gain}": None}
    if len(parts) > _ROWS:
        print(f"  ... and {count_noun(len(parts) - _ROWS, 'more message')}")
    for sentence in gains:
        print(f"  {sentence}")
    others: dict[str, list[UnalignedMessage]] = {}
    for one in unaligned:
        if not one.calls.message.begins_unaligned:
            others.setdefault(one.gain, []).append(one)
    for gain, ones in others.items():
        kinds = ", ".join(sorted({one.calls.message.collective for one in ones}))
        note(f"alignment of {count_noun(len(ones), 'size')} of {kinds}: {gain}")


def _times(prediction: Prediction) -> dict[str, float]:
    return {
        "step_ms": prediction.step_us / 1e3,
        "low_ms": prediction.low_us / 1e3,
        "high_ms": prediction.high_us / 1e3,
    }


def _compute(workload: Workload, cluster: Cluster, given: StepOptions) -> tuple[float | None, str]:
    """Return the compute time of one step, s, and where it comes from; None = not known."""
    flops = {"--tflops": given.tflops, "--params": given.params, "--tokens-per-step": given.tokens_per_step}
    if workload.provenance.whole_file:
        if any(value is not None for value in (given.step_ms, given.compute_ms, *flops.values())):
            raise UsageError(
                f"cannot compare with the computation of a step: {workload.name} has no known number of steps",
                hint="import it again with `ncclt profile import --steps N`",
            )
        return None, "the profile has no known number of steps"
    for option, value in (("--step-ms", given.step_ms), ("--compute-ms", given.compute_ms)):
        if value is not None and not (value > 0 and math.isfinite(value)):
            raise UsageError(f"{option} must be above 0, not {value:g}")
    if given.compute_ms is not None:
        if any(value is not None for value in flops.values()):
            raise UsageError("--compute-ms is the result of --tflops, --params and --tokens-per-step", hint="give one")
        return given.compute_ms / 1e3, "given"
    if any(value is not None for value in flops.values()):
        known = workload.provenance.detail.get("parameters", "")
        parameters = given.params if given.params is not None else float(known) if known.isdecimal() else None
        tflops, tokens = given.tflops, given.tokens_per_step
        if tflops is None or parameters is None or tokens is None:
            lacking = [option for option, value in {**flops, "--params": parameters}.items() if value is None]
            raise UsageError(f"{' and '.join(lacking)} missing", hint=f"{', '.join(flops)} belong together")
        seconds = compute_seconds(parameters=parameters, tokens_per_step=tokens, gpus=cluster.world_size, tflops=tflops)
        work = OPERATIONS * parameters * tokens / cluster.world_size / 1e12
        return seconds, (
            f"{OPERATIONS} operations per parameter and token: {parameters:,.0f} parameters x {tokens:,.0f} tokens / "
            f"{cluster.world_size} GPUs = {work:,.0f} TFLOP, at {tflops:g} TFLOP/s"
        )
    step_us = given.step_ms * 1e3 if given.step_ms is not None else workload.step_time_us
    if step_us and workload.exposed_us is not None and workload.exposed_us < step_us:
        seconds = (step_us - workload.exposed_us) / 1e6
        return seconds, "recorded: step time without exposed communication, on the GPUs of the recording"
    return None, "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredTimes:
    """Times of the default on one cluster.

    Attributes:
        measurements: of the default.
        curves: median time by size, for each kind of message.
        studies: names of their studies, newest first.
        simulated: they come from a model.
        recorded: `recorded: SYSTEM, SOURCE` of replayed ones.
    """

    measurements: tuple[Measurement, ...]
    curves: Mapping[CurveKey, Curve]
    studies: tuple[str, ...]
    simulated: bool
    recorded: str = ""

    @property
    def sentence(self) -> str:
        """Their origin in one sentence."""
        if not self.studies:
            return "Times: nominal link bandwidth (no study of this cluster)"
        kind = "SIMULATED, not measured" if self.simulated else self.recorded or "measured"
        return (
            f"Times: {count_noun(len(self.studies), 'study', 'studies')} with the NCCL default ({kind}), else the "
            "nominal link bandwidth"
        )


def _measured_times(store: Store, cluster: Cluster) -> MeasuredTimes:
    """Collect the good launches of the default from the studies whose fingerprint is that of the cluster.

    Replayed studies count only where none was measured in place, and simulated ones where there is no other.
    """
    fitting = list(_fitting(store, cluster))
    real = [s for s in fitting if not s.label] or [s for s in fitting if not s.simulated]
    chosen = (real or fitting)[:_MOST_STUDIES]
    found: list[Measurement] = []
    used: list[str] = []
    for study in chosen:
        default = [
            measurement
            for trial in store.trials.find(study.id)
            if trial.is_default and trial.result.outcome is Outcome.OK
            for measurement in trial.result.measurements
        ]
        if default:
            used.append(study.name)
            found += default
    return MeasuredTimes(
        measurements=tuple(found),
        curves=build_curves(found),
        studies=tuple(used),
        simulated=bool(used) and not real,
        recorded=real[0].label if used and real else "",
    )


def _fitting(store: Store, cluster: Cluster) -> Iterator[Study]:
    cursor: str | None = None
    while True:
        page = store.studies.page(limit=500, cursor=cursor, cluster=cluster.name)
        for summary in page.items:
            if not cluster.fingerprint().mismatches(summary.study.cluster.fingerprint()):
                yield summary.study
        cursor = page.next_cursor
        if cursor is None:
            return


def _estimate_document(found: Estimate, source: str, measured: MeasuredTimes) -> dict[str, Any]:
    bound = found.is_network_bound
    return {
        "compute_s": found.compute_s,
        "compute_source": source,
        "communication_s": found.communication_s,
        "links_s": found.links_s,
        "bound": None if bound is None else "network" if bound else "compute",
        "busbw_gbps": found.bus_gbps,
        "turning_busbw_gbps": found.turning_gbps,
        "studies": list(measured.studies),
        "messages": [
            {
                **row.message.to_document(),
                "calls_per_step": row.calls_per_step,
                "time_us": row.time_us,
                "source": _source(row, measured),
                "link_gbps": row.link_gbps,
            }
            for row in found.messages
        ],
    }


def _print_estimate(profile: Workload, found: Estimate, source: str, measured: MeasuredTimes) -> None:
    from ncclt.core.message import format_bytes

    calls, time = f"calls per {profile.unit}", f"ms per {profile.unit}"
    header = ("collective", "size", "group", calls, "µs per call", time, "ring limit, GB/s", "from")
    rows = [
        (
            row.message.collective.value,
            format_bytes(row.message.size_bytes),
            str(row.message.group_size),
            f"{row.calls_per_step:g}",
            f"{row.time_us:,.1f}",
            f"{row.time_us * row.calls_per_step / 1e3:,.2f}",
            f"{row.link_gbps:.1f}",
            _source(row, measured),
        )
        for row in found.messages[:_ROWS]
    ]
    print_table(header, rows, numbers=header[1:-1])
    if len(found.messages) > _ROWS:
        print(f"... and {len(found.messages) - _ROWS} more messages")
    print(measured.sentence)
    average = f"average bus bandwidth {found.bus_gbps:.3g} GB/s"
    print(f"Communication: {_seconds(found.communication_s)} {profile.per}, {average}")
    if found.communication_s != found.links_s:
        print(f"  expected from rings at nominal link bandwidth: {_seconds(found.links_s)}")
    if found.compute_s is None:
        ask = "give --compute-ms, or --tflops, --params and --tokens-per-step"
        print(f"Compute: {f'unknown; {ask}' if not profile.provenance.whole_file else f'not comparable: {source}'}")
        return
    print(f"Compute: {_seconds(found.compute_s)} per step ({source})")
    longest, both = max(found.compute_s, found.communication_s), found.compute_s + found.communication_s
    verdict = "Network-bound" if found.is_network_bound else "Compute-bound"
    print(f"{verdict}: {_seconds(longest)}/step with full overlap, {_seconds(both)} with none")
    print(f"Network-bound below {found.turning_gbps:.3g} GB/s bus bandwidth")


def _source(row: MessageTime, measured: MeasuredTimes) -> str:
    if row.source != "measured":
        return row.source
    return "simulated" if measured.simulated else "recorded" if measured.recorded else row.source


def _seconds(value: float) -> str:
    return format_duration(value * 1e6)


def _print_advice(advice: Advice) -> None:
    job, step_us = advice.job, advice.as_is.step_us
    print(
        f"Exposed communication: {_seconds(advice.exposed_us / 1e6)} of {_seconds(step_us / 1e6)} per step "
        f"({advice.exposed_us / step_us * 100:.1f} %{'' if job.step_us is not None else ', predicted'}); no NCCL "
        "setting can gain more"
    )
    explained_us = max(0.0, advice.model_us - job.compute_us)
    if job.step_us is not None and explained_us < 0.8 * advice.exposed_us:
        print(
            f"  The messages and the backward pass explain about {explained_us / 1e3:.2g} ms of it. None of these "
            "changes fix the rest, often CPU launch overhead."
        )
    rows = [(number, one, one.prediction) for number, one in enumerate(advice.changes, 1) if one.prediction]
    header = ("", "PREDICTED", "step", "range", "speed-up", "")
    print_table(
        header,
        [
            (
                str(number),
                change.name,
                f"{found.step_us / 1e3:.1f} ms",
                f"{found.low_us / 1e3:.1f} to {found.high_us / 1e3:.1f}",
                f"{step_us / found.step_us:.2f}x",
                "lossy" if change.lossy else "",
            )
            for number, change, found in rows
        ],
        numbers=("", "step", "range", "speed-up"),
    )
    if any(change.lossy for _, change, _ in rows):
        print("lossy: rounds gradients; check the loss before you keep it")
    print("To try:")
    for number, change, _ in rows:
        print(f"{number:3}  " + change.code.replace("; ", "\n     "))
        if change.why:
            print(f"       {change.why}")
    for change in (one for one in advice.changes if one.prediction is None):
        print(f"not predicted: {change.name}: {change.why}")
    for sentence in advice.notes:
        note(sentence)
    print(f"Measure one on real steps:\n  {_TEST}")
