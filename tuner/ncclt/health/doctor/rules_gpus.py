"""Rules about the state of the GPUs, from `nvidia-smi -q -x`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ncclt.health.doctor.facts import Facts
from ncclt.health.doctor.finding import Check, DoctorRule, Observation, Severity, rule
from ncclt.health.doctor.gpu_report import GpuReport, GpuState
from ncclt.nccl.log.evidence import Evidence


def _about(applies: Callable[[GpuState], bool], what: str, shown: Callable[[GpuState], str]) -> Check:
    """Return a check with one observation per report that names all GPUs to which something applies."""

    def check(facts: Facts) -> Iterator[Observation]:
        for report in facts.gpu_reports:
            if found := [gpu for gpu in report.gpus if applies(gpu)]:
                names = ", ".join(gpu.name for gpu in found)
                lines = tuple(_line(report, gpu, shown(gpu)) for gpu in found)
                yield Observation(what=f"{names}: {what}", evidence=lines)

    return check


def _line(report: GpuReport, gpu: GpuState, text: str) -> Evidence:
    return Evidence(source=report.source, text=f"{gpu.name} {gpu.bus_id} {gpu.model}: {text}")


@rule(
    id="GPU001",
    severity=Severity.WARNING,
    title="different GPU models",
    why="The slowest sets the pace, NCCL switches LL128 off where compute capabilities differ, and no figure fits "
    "both.",
    fix="choose nodes of one kind (constraints of the scheduler, CUDA_VISIBLE_DEVICES)",
    source="graph/tuning.cc (minCompCap == maxCompCap)",
)
def _mixed(facts: Facts) -> Iterator[Observation]:
    models = {gpu.model: _line(report, gpu, "another model") for report in facts.gpu_reports for gpu in report.gpus}
    lines = tuple(models.values())
    if len(models) < 2:
        models = {model: Evidence(source=", ".join(facts.log.sources), text=model) for model in facts.log.gpu_models}
        lines = tuple(models.values())
    if len(models) > 1:
        yield Observation(what=f"GPUs of different models: {', '.join(models)}", evidence=lines)


def _below(now: int | None, best: int | None) -> bool:
    return now is not None and best is not None and 0 < now < best


_SMI = "nvidia-smi manual"

GPU_RULES = (
    _mixed,
    DoctorRule(
        id="GPU002",
        severity=Severity.WARNING,
        title="memory errors",
        why="Jobs on this GPU will crash sooner or later, and may have computed with wrong data.",
        fix="drain the node, reset the GPU, run `dcgmi diag -r 3`",
        source=f"{_SMI}, ECC errors and GPU recovery action",
        check=_about(
            lambda gpu: bool(gpu.uncorrected_errors or gpu.remap_failed or gpu.recovery),
            "memory errors, or the driver asks for a reset",
            lambda gpu: (
                f"{gpu.uncorrected_errors} uncorrected errors, rows replaced in vain: {gpu.remap_failed}, "
                f"recovery: {gpu.recovery or 'none'}"
            ),
        ),
    ),
    DoctorRule(
        id="GPU003",
        severity=Severity.WARNING,
        title="slowed by heat or power",
        why="All ranks wait for the slowest GPU, and measurements vary with its temperature.",
        fix="look at cooling and power supplies; `nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER`",
        source=f"{_SMI}, clocks event reasons",
        check=_about(lambda gpu: bool(gpu.slowdowns), "slowed down", lambda gpu: ", ".join(gpu.slowdowns) + " active"),
    ),
    DoctorRule(
        id="GPU004",
        severity=Severity.WARNING,
        title="PCIe link below its best",
        why="Transfers to NICs and other GPUs over PCIe have only part of their bandwidth.",
        fix="reseat the board or riser, look at the BIOS's slot settings, compare with `lspci -vv` (LnkSta)",
        source=f"{_SMI}, PCIe generation and link width",
        check=_about(
            lambda gpu: (
                _below(gpu.link_width, gpu.max_link_width) or (not gpu.idle and _below(gpu.link_gen, gpu.max_link_gen))
            ),
            "the PCIe link is below its best",
            lambda gpu: f"x{gpu.link_width} of x{gpu.max_link_width}, generation {gpu.link_gen} of {gpu.max_link_gen}",
        ),
    ),
    DoctorRule(
        id="GPU005",
        severity=Severity.WARNING,
        title="MIG is on",
        why="Parts of a GPU have no peer-to-peer access and NCCL cannot use NVLink between them.",
        fix="`nvidia-smi -mig 0` on an empty node",
        source="MIG user guide, application considerations",
        check=_about(lambda gpu: gpu.mig, "split by MIG", lambda _gpu: "MIG is enabled"),
    ),
    DoctorRule(
        id="GPU006",
        severity=Severity.WARNING,
        title="not registered with NVSwitch",
        why="Without registration there is no NVLink between these GPUs, or CUDA does not start at all.",
        fix="start nvidia-fabricmanager of the driver's version and wait for `Completed`",
        source=f"{_SMI}, fabric",
        check=_about(
            lambda gpu: gpu.fabric_state not in ("", "Completed"),
            "not registered with NVSwitch",
            lambda gpu: f"fabric state is {gpu.fabric_state}",
        ),
    ),
    DoctorRule(
        id="GPU007",
        severity=Severity.INFO,
        title="PCIe link at rest",
        why="Idle boards save power; whether the link reaches its best can only be seen under load.",
        fix="look again while a job runs",
        source=f"{_SMI}, PCIe generation",
        check=_about(
            lambda gpu: (
                gpu.idle and _below(gpu.link_gen, gpu.max_link_gen) and not _below(gpu.link_width, gpu.max_link_width)
            ),
            "the PCIe link rests at a lower generation",
            lambda gpu: f"generation {gpu.link_gen} of {gpu.max_link_gen}, idle",
        ),
    ),
    DoctorRule(
        id="GPU008",
        severity=Severity.INFO,
        title="memory rows wait to be replaced",
        why="Until the next reset the GPU works around them.",
        fix="reset the GPU when the node is empty",
        source=f"{_SMI}, remapped rows",
        check=_about(
            lambda gpu: gpu.remap_pending,
            "rows of memory wait to be replaced",
            lambda _gpu: "replaced at the next reset",
        ),
    ),
    DoctorRule(
        id="GPU009",
        severity=Severity.INFO,
        title="persistence mode is off",
        why="The driver is loaded at each start: launches take seconds longer, and error counts are lost.",
        fix="start nvidia-persistenced",
        source=f"{_SMI}, persistence mode",
        check=_about(
            lambda gpu: gpu.persistence is False, "persistence mode is off", lambda _gpu: "persistence mode is Disabled"
        ),
    ),
)
"""About the GPUs themselves."""
