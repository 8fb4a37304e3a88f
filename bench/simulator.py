"""How well does the simulated cluster rank settings that were really measured, beside NCCL's own cost model?

Per recorded landscape with at least four forced settings: Kendall's rank correlation of predicted and measured times
over the settings of each size, averaged over sizes, and the regret: how much slower than the best measured setting is
the one that the model names, averaged over sizes. NCCL's model does not know channels: where it names several settings
as equally good, the mean of their measured times counts.

    python bench/simulator.py [--json] [--data FOLDER]
    python bench/simulator.py --landscape FILE [--where COLUMN=VALUE ...]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from scipy.stats import kendalltau

from ncclt.core.cluster import Cluster
from ncclt.core.message import Collective, Message
from ncclt.core.setting import DEFAULT, Setting
from ncclt.errors import NccltError, UsageError
from ncclt.measure.simulated import Landscape, SimulatedRunner, load_landscape
from ncclt.nccl.cost_model.model import nccl_choice

FEWEST_SETTINGS = 4
DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "measurements"

L40S = Cluster(
    name="l40s-farmshare", gpus_per_node=4, gpu="L40S", compute_capability=89, link_class="shm", link_gbps=32.0,
    cpu="amd", nccl_version="2.29.2",
)  # fmt: skip
RTX4090 = Cluster(
    name="4x-rtx-4090", gpus_per_node=4, gpu="RTX-4090", compute_capability=89, link_class="shm", link_gbps=40.0,
    cpu="amd", nccl_version="2.30.7",
)  # fmt: skip
H100 = Cluster(
    name="h100-slice", gpus_per_node=8, gpu="H100-SXM5-80GB", compute_capability=90, link_class="nvswitch",
    link_gbps=450.0, nccl_version="2.18.3",
)  # fmt: skip
MI355X = Cluster(
    name="mi355x-x8", nodes=2, gpus_per_node=8, gpu="MI355X", compute_capability=95, link_class="nvlink",
    link_gbps=538.0, fabric="roce", nics_per_node=8, nic_gbps=50.0, gpudirect=True, cpu="amd", nccl_version="2.28.3",
)  # fmt: skip
MODAL = Cluster(
    name="a100-modal", nodes=2, gpus_per_node=8, gpu="A100-SXM4-80GB", compute_capability=80, link_class="nvswitch",
    link_gbps=300.0, fabric="ethernet", nics_per_node=1, nic_gbps=6.0, nccl_version="2.21.5",
)  # fmt: skip
LOOPBACK = Cluster(
    name="rtx5090-loopback", nodes=2, gpus_per_node=1, gpu="RTX-5090", compute_capability=120, link_class="pcie",
    link_gbps=64.0, fabric="ethernet", nics_per_node=1, nic_gbps=3.0, nccl_version="2.29.7",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A landscape among the public data, and the cluster it was measured on as far as it is known."""

    name: str
    file: str
    where: Mapping[str, str]
    cluster: Cluster


_SEQUENTIAL = {"other_env": "sequential*multi-node"}
CASES = (
    Case(name="2 x L40S", file="l40s_a100_cs244c.csv", where={"system": "L40S*", "gpus": "2", "other_env": ""},
         cluster=L40S.sized(gpus_per_node=2)),
    Case(name="4 x L40S", file="l40s_a100_cs244c.csv", where={"system": "L40S*", "gpus": "4", "other_env": ""},
         cluster=L40S),
    Case(name="2 x 8 MI355X", file="mi355x_rccl_2node_allreduce_grid.csv", where={}, cluster=MI355X),
    Case(name="4 x H100", file="h100_nvswitch_waynehacking8.csv",
         where={"gpus": "4", "nccl_version": "2.18.3", "other_env": ""}, cluster=H100.sized(gpus_per_node=4)),
    Case(name="4 x RTX 4090", file="rtx4090x4_shm_and_k500sm_channels.csv", where={"system": "4x RTX*"},
         cluster=RTX4090),
    Case(name="8 A100 Modal, iteration", file="a100_modal_multinode_iterproxy.csv", where={"nodes": "1", **_SEQUENTIAL},
         cluster=MODAL.sized(nodes=1)),
    Case(name="2 x 4 A100 Modal, iteration", file="a100_modal_multinode_iterproxy.csv",
         where={"nodes": "2", "collective": "all_reduce", **_SEQUENTIAL}, cluster=MODAL.sized(gpus_per_node=4)),
    Case(name="2 ranks on one RTX 5090", file="rtx5090_single_gpu_socket_loopback.csv", where={"other_env": ""},
         cluster=LOOPBACK),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One landscape's scores; Kendall's tau from -1 to 1, regret as a share (0.1 = 10 % slower than the best)."""

    landscape: str
    sizes: int
    settings: int
    kendall_ours: float
    kendall_nccl: float
    regret_ours: float
    regret_nccl: float


Prediction = Callable[[Setting, Message], float]


def score(landscape: Landscape, cluster: Cluster, name: str) -> Line | None:
    """Score both models on a landscape; None where fewer than four settings were forced at any size."""
    runner = SimulatedRunner(cluster, seed=0, sigma=0)

    def ours(setting: Setting, message: Message) -> float:
        return runner.expected_us(setting, message)

    def nccl(setting: Setting, message: Message) -> float:
        choice = nccl_choice(
            message.collective, message.size_bytes, cluster, algorithm=setting.algorithm, protocol=setting.protocol
        )
        return choice.time_us if choice else float("inf")

    grids = []
    for collective in sorted({c for c, s in landscape.curves if not s.is_default}):
        for size_bytes in _sizes(landscape, collective):
            message = Message(collective=collective, dtype="float32", size_bytes=size_bytes)
            real = _measured(landscape, message)
            if len(real) >= FEWEST_SETTINGS:
                grids.append((message, real))
    if not grids:
        return None
    scores = [(_agreement(real, message, ours), _agreement(real, message, nccl)) for message, real in grids]
    return Line(
        landscape=name,
        sizes=len(grids),
        settings=len({setting for _, real in grids for setting in real}),
        kendall_ours=round(statistics.mean(a.kendall for a, _ in scores), 3),
        kendall_nccl=round(statistics.mean(b.kendall for _, b in scores), 3),
        regret_ours=round(statistics.mean(a.regret for a, _ in scores), 4),
        regret_nccl=round(statistics.mean(b.regret for _, b in scores), 4),
    )


def _sizes(landscape: Landscape, collective: Collective) -> list[int]:
    return sorted(
        {size for (c, s), curve in landscape.curves.items() if c is collective and s != DEFAULT for size, _ in curve}
    )


def _measured(landscape: Landscape, message: Message) -> dict[Setting, float]:
    """Return the measured time of every forced setting that was recorded at this very size."""
    return {
        setting: statistics.median(landscape.time_samples(setting, message))
        for collective, setting in landscape.curves
        if collective is message.collective and setting != DEFAULT and landscape.is_exact(setting, message)
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """How well a prediction orders the settings of one size."""

    kendall: float
    regret: float


def _agreement(real: Mapping[Setting, float], message: Message, predict: Prediction) -> Agreement:
    times = list(real.values())
    predicted = [predict(setting, message) for setting in real]
    tied = len(set(predicted)) == 1 or len(set(times)) == 1
    named = [time for time, guess in zip(times, predicted, strict=True) if guess <= min(predicted) * (1 + 1e-9)]
    return Agreement(
        kendall=0.0 if tied else float(kendalltau(times, predicted).statistic),
        regret=statistics.mean(named) / min(times) - 1,
    )


def _cases(arguments: argparse.Namespace) -> list[Line | None]:
    if arguments.landscape:
        where = dict(_pair(text) for text in arguments.where)
        landscape = load_landscape(arguments.landscape, where)
        return [score(landscape, landscape.cluster, arguments.landscape.name)]
    if not arguments.data.is_dir():
        raise UsageError(f"no folder {arguments.data}", hint="give --data FOLDER or --landscape FILE")
    return [score(load_landscape(arguments.data / c.file, c.where), c.cluster, c.name) for c in CASES]


def _pair(text: str) -> tuple[str, str]:
    column, separator, value = text.partition("=")
    if not separator:
        raise UsageError(f"--where {text!r} is no COLUMN=VALUE", hint="for example --where gpus=4")
    return column, value


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table, or with --json one document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--landscape", type=Path, help="a table of measurements instead of the known ones")
    parser.add_argument("--where", action="append", default=[], metavar="COLUMN=VALUE", help="rows to keep")
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the known tables")
    arguments = parser.parse_args(argv)
    try:
        lines = [line for line in _cases(arguments) if line]
        if not lines:
            raise UsageError(f"no size with {FEWEST_SETTINGS} or more forced settings", hint="use other rows")
    except NccltError as error:
        print(f"{error.message}\nhint: {error.hint}", file=sys.stderr)
        return 1
    if arguments.json:
        print(json.dumps({"rows": [asdict(line) for line in lines]}))
        return 0
    print(f"{'landscape':30} {'sizes':>5} {'settings':>8} {'kendall':>8} {'(nccl)':>8} {'regret':>8} {'(nccl)':>8}")
    for line in lines:
        print(
            f"{line.landscape[:30]:30} {line.sizes:5} {line.settings:8} {line.kendall_ours:8.3f} "
            f"{line.kendall_nccl:8.3f} {line.regret_ours:8.1%} {line.regret_nccl:8.1%}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
