"""How far are the predictions of `ncclt advise` from published steps?

    python bench/advice.py [--json]

The figures are those of the articles that this project grew from, carried below with their source. A published ratio
(+65 %) becomes a time by the base of the same block. Where an article says only "slower" or "alike", `measured_ms` is
null and `said` has its words. Nothing is fitted to these figures: the model's constants come from data sheets,
PyTorch's code and other measurements, see `ncclt.profile.advice`.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ncclt.core.cluster import Cluster
from ncclt.core.message import Collective, Message
from ncclt.core.workload import MessageCalls, Provenance, Workload
from ncclt.errors import NccltError
from ncclt.profile.advice.advice import Advice, advise
from ncclt.profile.advice.changes import BUCKET_COPY
from ncclt.profile.advice.job import LIKELY, call_times
from ncclt.profile.views.estimate import Curve, CurvePoint
from ncclt.store.shipped import profiles_folder, shipped_clusters, shipped_workloads
from output import Rows, build_parser

VIT, GPT, FABRIC = (
    "Optimizing data transfer in distributed training",
    "GPT Adventures, part 4",
    "GPU fabric preflight checks",
)

VIT_BYTES = 306_535_400 * 4
PAIR_CURVE: Curve = (
    CurvePoint(8388608, 580.2),
    CurvePoint(16777216, 947.6),
    CurvePoint(33554432, 1798.5),
    CurvePoint(67108864, 3528.4),
    CurvePoint(134217728, 6924.6),
)
TWO_NODES_CURVE: Curve = (
    CurvePoint(524288, 97.47),
    CurvePoint(4194304, 148.7),
    CurvePoint(8388608, 223.3),
    CurvePoint(16777216, 303.1),
    CurvePoint(33554432, 511.7),
    CurvePoint(67108864, 953.1),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One published figure and its prediction, ms; error = predicted / measured - 1."""

    source: str
    system: str
    model: str
    change: str
    measured_ms: float | None
    predicted_ms: float
    low_ms: float
    high_ms: float
    error: float | None
    said: str = ""


def _row(
    source: str,
    system: str,
    model: str,
    change: str,
    measured_ms: float | None,
    predicted: tuple[float, float, float],
    said: str = "",
) -> Row:
    likely, low, high = predicted
    error = None if measured_ms is None else likely / measured_ms - 1
    return Row(
        source=source,
        system=system,
        model=model,
        change=change,
        measured_ms=measured_ms,
        predicted_ms=likely,
        low_ms=low,
        high_ms=high,
        error=error,
        said=said,
    )


def _of(advice: Advice, pattern: str) -> tuple[float, float, float]:
    """Return the prediction of the first change whose name the pattern matches, ms."""
    matching = (change.prediction for change in advice.changes if re.match(pattern, change.name))
    prediction = next(filter(None, matching))
    return prediction.step_us / 1e3, prediction.low_us / 1e3, prediction.high_us / 1e3


def _advise(step_ms: float, compute_ms: float, cluster: Cluster) -> Advice:
    """Advise on ViT-L/32 with one bucket of all gradients, as the article starts."""
    message = Message(collective=Collective.ALL_REDUCE, dtype="float32", size_bytes=VIT_BYTES)
    workload = Workload(
        name="vit-l-32",
        messages=(MessageCalls(message=message, calls_per_step=1.0),),
        provenance=Provenance(source="article"),
    )
    return advise(workload, cluster, measured={}, step_us=step_ms * 1e3, compute_us=compute_ms * 1e3)


def vit(clusters: dict[str, Cluster]) -> Iterator[Row]:
    """Give the rows of ViT-L/32 on 8 L40S and on 8 A100."""
    system, base = "8 x L40S, SHM", 701.0
    l40s = _advise(base, base - 587, clusters["aws-g6e"])
    for change, name, measured in (
        ("gradient_as_bucket_view", "gradient_as_bucket_view", base / 1.01),
        ("bf16 compression", "bf16 or fp16", base / 1.65),
        ("all together (bf16, buckets, view)", "bf16, bucket", base / 1.86),
        ("PowerSGD", "PowerSGD", 1e3 / 7.5),
    ):
        yield _row(VIT, system, "ViT-L/32", change, measured, _of(l40s, name))
    yield _copies(l40s, "1 x L40S", 1e3 / 8.91, 1e3 / 8.40)
    system, base = "8 x A100 40 GB, NVSwitch", 1e3 / (5.17 * 0.92)
    a100 = _advise(base, 1e3 / 5.04, clusters["aws-p4d"])
    for change, name, measured_ms, said in (
        ("gradient_as_bucket_view", "gradient_as_bucket_view", base / 1.01, ""),
        ("all together (buckets, view)", r"bucket_cap_mb=\d+, bucket view", base / 1.04, ""),
        ("bf16 compression", "bf16 or fp16", None, f"slower than {base:.1f} ms"),
    ):
        yield _row(VIT, system, "ViT-L/32", change, measured_ms, _of(a100, name), said)
    yield _copies(a100, "1 x A100 40 GB", 1e3 / 5.17, 1e3 / 5.04)


def _copies(advice: Advice, system: str, without_ms: float, with_ms: float) -> Row:
    """DDP on one GPU: nothing is sent, and gradients are copied into the bucket and out of it."""

    def step_ms(memory: float) -> float:
        touched = BUCKET_COPY[True] * VIT_BYTES
        return without_ms + advice.job.memory_us(touched, replace(LIKELY, memory=memory)) / 1e3

    times = (step_ms(LIKELY.memory), step_ms(0.95), step_ms(0.6))
    return _row(VIT, system, "ViT-L/32", "DDP on one GPU: copies", with_ms, times)


def gpt(clusters: dict[str, Cluster], gpt2: Workload) -> Iterator[Row]:
    """Give the rows of GPT on two to eight A100: calls alone, for no step times are published."""
    pair = clusters["pcie-pair"]
    measured = {(Collective.ALL_REDUCE, 2, False): PAIR_CURVE}
    times = call_times(gpt2, pair, measured)
    bus = replace(pair, gpus_per_node=8)
    size, pair_us = 33554432, 1798.5
    four_us = times.time_us(Collective.ALL_REDUCE, size, bus.sized(gpus_per_node=4))
    spread = times.spread(Collective.ALL_REDUCE, size, bus.sized(gpus_per_node=4))
    yield _row(
        GPT,
        "4 x A100, PCIe",
        "GPT",
        "2 to 4 GPUs: all_reduce of 32 MiB",
        5 * pair_us / 1e3,
        (four_us / 1e3, four_us / spread / 1e3, four_us * spread / 1e3),
    )
    for name, system, measured_ms in (("aws-p4d", "A100 40 GB", 1.25), ("dgx-a100", "A100 80 GB", 0.8)):
        alone = call_times(gpt2, clusters[name], {})
        time_ms = alone.time_us(Collective.ALL_REDUCE, 1e8) * LIKELY.stretch / 1e3
        wide = alone.spread(Collective.ALL_REDUCE, 1e8)
        yield _row(
            GPT,
            f"8 x {system}, NVSwitch",
            "GPT",
            "all_reduce of 100 MB beside compute",
            measured_ms,
            (time_ms, time_ms / wide, time_ms * wide),
        )
    gradient_bytes = gpt2.bytes_per_step
    for cap_mb, said in ((1, "considerably slower than 25 MB"), (25, ""), (100, "as 25 MB")):
        count = math.ceil(gradient_bytes / (cap_mb * 2**20))
        total_ms = count * times.time_us(Collective.ALL_REDUCE, gradient_bytes / count) / 1e3
        wide = times.spread(Collective.ALL_REDUCE, gradient_bytes / count)
        yield _row(
            GPT,
            "2 x A100, PCIe",
            "GPT-2",
            f"buckets of {cap_mb} MB, all calls",
            None,
            (total_ms, total_ms / wide, total_ms * wide),
            said,
        )


def resnet(clusters: dict[str, Cluster], resnet101: Workload) -> Iterator[Row]:
    """Give the rows of ResNet-101 under DDP: from the step of one GPU, and two nodes from one."""
    cluster = clusters["dgx-a100"]
    for gpus, measured_ms in ((2, 66.0), (4, 68.0), (8, 69.0)):
        prediction = advise(resnet101, cluster.sized(gpus_per_node=gpus), compute_us=64_000.0, measured={}).as_is
        times = (prediction.step_us / 1e3, prediction.low_us / 1e3, prediction.high_us / 1e3)
        yield _row(FABRIC, f"{gpus} GPUs", "ResNet-101", f"1 to {gpus} GPUs", measured_ms, times)
    two_nodes = advise(
        resnet101,
        cluster,
        step_us=69_000.0,
        compute_us=64_000.0,
        measured={(Collective.ALL_REDUCE, 16, True): TWO_NODES_CURVE},
        others=(cluster.sized(nodes=2),),
    )
    yield _row(FABRIC, "2 x 8 GPUs, 1,600 Gb/s", "ResNet-101", "1 to 2 nodes", 89.0, _of(two_nodes, "2 nodes"))


def main(argv: Sequence[str] | None = None) -> int:
    options = build_parser(__doc__).parse_args(argv)
    rows = Rows(as_json=options.json)
    try:
        clusters, workloads = shipped_clusters(profiles_folder()), shipped_workloads(profiles_folder())
        for row in (*vit(clusters), *gpt(clusters, workloads["gpt2"]), *resnet(clusters, workloads["resnet101"])):
            rows.add(row)
    except NccltError as error:
        print(f"bench/advice.py: {error.message}", file=sys.stderr)
        return 2
    errors = sorted(abs(row["error"]) for row in rows if row["error"] is not None)
    inside = sum(
        row["low_ms"] <= row["measured_ms"] <= row["high_ms"] for row in rows if row["measured_ms"] is not None
    )
    rows.end(f"median error {errors[len(errors) // 2]:.1%}; {inside} of {len(errors)} inside the range")
    return 0


if __name__ == "__main__":
    sys.exit(main())
