"""Rules about the state of the GPUs, from `nvidia-smi -q -x`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ncclt.health.doctor.facts import Facts
from ncclt.health.doctor.finding import DoctorRule, Observation, observe, rule
from ncclt.health.doctor.gpu_report import GpuReport, GpuState
from ncclt.nccl.log.evidence import Evidence


def _about(id: str, applies: Callable[[GpuState], bool], problem: str, show: Callable[[GpuState], str]) -> DoctorRule:
    """Make a rule with one observation per report, for all GPUs that meet a condition."""

    @rule(id)
    def check(facts: Facts) -> Iterator[Observation]:
        for report in facts.gpu_reports:
            if gpus := [gpu for gpu in report.gpus if applies(gpu)]:
                lines = (_line(report, gpu, show(gpu)) for gpu in gpus)
                yield observe(f"{', '.join(gpu.name for gpu in gpus)}: {problem}", *lines)

    return check


def _line(report: GpuReport, gpu: GpuState, text: str) -> Evidence:
    return Evidence(source=report.source, text=f"{gpu.name} {gpu.bus_id} {gpu.model}: {text}")


@rule("GPU001")
def _mixed(facts: Facts) -> Iterator[Observation]:
    reported = {gpu.model: _line(report, gpu, "another model") for report in facts.gpu_reports for gpu in report.gpus}
    logged = {model: Evidence(source=", ".join(facts.log.sources), text=model) for model in facts.log.gpu_models}
    models = reported if len(reported) > 1 else logged
    if len(models) > 1:
        yield observe(f"GPUs of different models: {', '.join(models)}", *models.values())


def _has_narrow_link(gpu: GpuState) -> bool:
    return 0 < (gpu.link_width or 0) < (gpu.max_link_width or 0)


def _has_slow_link(gpu: GpuState) -> bool:
    return 0 < (gpu.link_gen or 0) < (gpu.max_link_gen or 0)


_memory_errors = _about(
    "GPU002",
    lambda gpu: bool(gpu.uncorrected_errors or gpu.remap_failed or gpu.recovery),
    "memory errors, or the driver asks for a reset",
    lambda gpu: (
        f"{gpu.uncorrected_errors} uncorrected errors, rows replaced in vain: {gpu.remap_failed}, "
        f"recovery: {gpu.recovery or 'none'}"
    ),
)
_slowed = _about(
    "GPU003", lambda gpu: bool(gpu.slowdowns), "slowed down", lambda gpu: f"{', '.join(gpu.slowdowns)} active"
)
_narrow_link = _about(
    "GPU004",
    lambda gpu: _has_narrow_link(gpu) or (not gpu.idle and _has_slow_link(gpu)),
    "the PCIe link is below its maximum",
    lambda gpu: f"x{gpu.link_width} of x{gpu.max_link_width}, generation {gpu.link_gen} of {gpu.max_link_gen}",
)
_split = _about("GPU005", lambda gpu: gpu.mig, "split by MIG", lambda _gpu: "MIG is enabled")
_unregistered = _about(
    "GPU006",
    lambda gpu: gpu.fabric_state not in ("", "Completed"),
    "not registered with NVSwitch",
    lambda gpu: f"fabric state is {gpu.fabric_state}",
)
_resting_link = _about(
    "GPU007",
    lambda gpu: gpu.idle and _has_slow_link(gpu) and not _has_narrow_link(gpu),
    "the PCIe link rests at a lower generation",
    lambda gpu: f"generation {gpu.link_gen} of {gpu.max_link_gen}, idle",
)
_pending_rows = _about(
    "GPU008",
    lambda gpu: gpu.remap_pending,
    "rows of memory wait to be replaced",
    lambda _gpu: "replaced at the next reset",
)
_no_persistence = _about(
    "GPU009",
    lambda gpu: gpu.persistence is False,
    "persistence mode is off",
    lambda _gpu: "persistence mode is Disabled",
)
