"""Settings of a job beside those that vendors have published; a difference is a fact, not a finding."""

import pytest
from read_log import read_log

from ncclt.health.doctor import diagnose
from ncclt.health.doctor.facts import Facts
from ncclt.health.doctor.gpu_report import GpuReport, GpuState
from ncclt.health.doctor.published import PUBLISHED
from ncclt.nccl.variables import VariableClass, classify

PREFIX = "n:1:1 [0] NCCL INFO"


def _diagnosis(*lines, **facts):
    return diagnose(Facts(log=read_log(*(f"{PREFIX} {line}" for line in lines)), **facts))


@pytest.mark.parametrize("row", PUBLISHED, ids=lambda row: row.machine)
def test_every_row_has_a_source_and_variables_that_exist(row):
    assert row.source.startswith("https://")
    unknown = {name for name in row.values if classify(name)[0] is VariableClass.UNKNOWN}
    assert unknown <= {"NCCL_DYNAMIC_CHUNK_SIZE"}, "published for TCPXO, and read by no release of NCCL"


def _gpus(model):
    return {"gpu_reports": (GpuReport(source="gpus.xml", gpus=(GpuState(index=0, bus_id="", model=model),)),)}


H100, NVL = _gpus("NVIDIA H100 80GB HBM3"), _gpus("NVIDIA H100 NVL")
ND_V5 = "NCCL_TOPO_FILE set by environment to /opt/microsoft/ndv5-topo.xml"
IB = "NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.1<0>"
IBP = "NET/IB : Using [0]ibp0:1/IB [RO]; OOB eth0:10.0.0.1<0>"
CXI = "NET/OFI Selected provider is cxi, fabric is cxi (found 4 nics)"


@pytest.mark.parametrize(
    ("lines", "facts", "machine"),
    [
        (["Using network FasTrak"], {}, "GCP A3 Mega, GPUDirect-TCPXO"),
        ([ND_V5, IB], H100, "Azure ND H100 v5"),
        ([IB], {**H100, "vendor": "Microsoft Corporation"}, "Azure ND H100 v5"),
        ([IBP], H100, "CoreWeave H100, InfiniBand"),
        ([CXI], {"cpu": "arm"}, "Isambard-AI, GH200 on Slingshot"),
        ([ND_V5, IB], {}, ""),
        ([ND_V5], H100, ""),
        ([IB], {**NVL, "vendor": "Microsoft Corporation"}, ""),
        ([IBP], {}, ""),
        ([CXI], {"cpu": "amd"}, ""),
        ([CXI], {}, ""),
        ([IB], H100, ""),
        (["NET/OFI Selected provider is efa, fabric is efa (found 4 nics)"], {}, ""),
    ],
)
def test_machine_is_recognised_by_network_gpu_and_cpu(lines, facts, machine):
    assert [found.machine for found in _diagnosis(*lines, **facts).published] == ([machine] if machine else [])


def test_differences_are_named_and_judged_by_no_rule():
    settings = (
        "NCCL_TOPO_FILE set by environment to /opt/microsoft/ndv5-topo.xml",
        "NCCL_IB_PCI_RELAXED_ORDERING set by environment to 0",
        IB,
    )
    found = _diagnosis(*settings, **H100)

    (comparison,) = found.published
    assert comparison.same == ("NCCL_TOPO_FILE",)
    assert comparison.different == (("NCCL_IB_PCI_RELAXED_ORDERING", "1", "0"),)
    assert not [finding for finding in found.findings if "published" in finding.what]
    assert found.to_document()["published"][0]["different"] == [["NCCL_IB_PCI_RELAXED_ORDERING", "1", "0"]]
