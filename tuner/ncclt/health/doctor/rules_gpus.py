"""Rules about the state of the GPUs, from `nvidia-smi -q -x`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ncclt.health.doctor.facts import Facts
from ncclt.health.doctor.finding import Check, Observation, rule
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


@rule("GPU001")
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
    rule("GPU002")(
        _about(
            lambda gpu: bool(gpu.uncorrected_errors or gpu.remap_failed or gpu.recovery),
            "memory errors, or the driver asks for a reset",
            lambda gpu: (
                f"{gpu.uncorrected_errors} uncorrected errors, rows replaced in vain: {gpu.remap_failed}, "
                f"recovery: {gpu.recovery or 'none'}"
            ),
        )
    ),
    rule("GPU003")(
        _about(lambda gpu: bool(gpu.slowdowns), "slowed down", lambda gpu: ", ".join(gpu.slowdowns) + " active")
    ),
    rule("GPU004")(
        _about(
            lambda gpu: (
                _below(gpu.link_width, gpu.max_link_width) or (not gpu.idle and _below(gpu.link_gen, gpu.max_link_gen))
            ),
            "the PCIe link is below its best",
            lambda gpu: f"x{gpu.link_width} of x{gpu.max_link_width}, generation {gpu.link_gen} of {gpu.max_link_gen}",
        )
    ),
    rule("GPU005")(_about(lambda gpu: gpu.mig, "split by MIG", lambda _gpu: "MIG is enabled")),
    rule("GPU006")(
        _about(
            lambda gpu: gpu.fabric_state not in ("", "Completed"),
            "not registered with NVSwitch",
            lambda gpu: f"fabric state is {gpu.fabric_state}",
        )
    ),
    rule("GPU007")(
        _about(
            lambda gpu: (
                gpu.idle and _below(gpu.link_gen, gpu.max_link_gen) and not _below(gpu.link_width, gpu.max_link_width)
            ),
            "the PCIe link rests at a lower generation",
            lambda gpu: f"generation {gpu.link_gen} of {gpu.max_link_gen}, idle",
        )
    ),
    rule("GPU008")(
        _about(
            lambda gpu: gpu.remap_pending,
            "rows of memory wait to be replaced",
            lambda _gpu: "replaced at the next reset",
        )
    ),
    rule("GPU009")(
        _about(
            lambda gpu: gpu.persistence is False, "persistence mode is off", lambda _gpu: "persistence mode is Disabled"
        )
    ),
)
"""About the GPUs themselves."""
