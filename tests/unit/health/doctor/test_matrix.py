"""The matrix of nvidia-smi topo -m in the forms that drivers print."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclt.errors import InputError
from ncclt.health.doctor.matrix import Path, parse_link, parse_matrix

NEW = """\
\t\x1b[4mGPU0\tGPU1\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tNV12\tPXB\tSYS\t0-31,64-95\t0\t\tN/A
GPU1\tNV12\t X \tSYS\tPXB\t32-63\t1\t\tN/A
NIC0\tPXB\tSYS\t X \tSYS\t\t\t\t
NIC1\tSYS\tPXB\tSYS\t X \t\t\t\t

Legend:

  X    = Self

NIC Legend:

  NIC0: mlx5_0
  NIC1: rdmap16s27
"""


def _matrix(text=NEW):
    return parse_matrix(text.splitlines(), "topo.txt")


def test_paths_names_and_affinities():
    """NICs have the names of the legend, the underlining of the header is dropped."""
    matrix = _matrix()

    assert matrix.gpus == (0, 1)
    assert matrix.nics == ("mlx5_0", "rdmap16s27")
    assert matrix.link(0, 1).lanes == 12
    assert matrix.link(1, "mlx5_0").path is Path.SYS
    assert matrix.nic_links(1)[0][0] == "rdmap16s27"
    assert matrix.cpu_affinity == ("0-31,64-95", "32-63")
    assert matrix.numa_affinity == ("0", "1")
    assert [(a, b) for a, b, _ in matrix.gpu_pairs()] == [(0, 1)]
    assert matrix.has_nvlink


def test_forms_that_drivers_print(subtests):
    """Old and new drivers, and what copying does to their output."""
    for text, nics in [
        (
            "        GPU0    GPU1    CPU Affinity    NUMA Affinity\nGPU0     X      PHB     0-11            N/A\n"
            "GPU1    PHB      X      0-11            N/A\n",
            (),
        ),
        (
            "\tGPU0\tGPU1\tmlx5_0\tCPU Affinity\nGPU0\tX\tPIX\tNODE\t0-7\nGPU1\tPIX\tX\tNODE\t0-7\n"
            "mlx5_0\tNODE\tNODE\tX\n",
            ("mlx5_0",),
        ),
        ("[4m\tGPU0\tGPU1\tNIC0\tCPU Affinity[0m\nGPU0\tX\tPIX\tNODE\t0-7\nGPU1\tPIX\tX\tNODE\t0-7\n", ("NIC0",)),
        ("GPU Topology:\n  \tGPU0\tGPU1\nGPU0\tX\tSYS\nGPU1\tSYS\tX\n", ()),
        ("\tGPU0\tCPU Affinity\tNUMA Affinity\nGPU0\t X \t0-15\tN/A\n", ()),
    ]:
        with subtests.test(text=text, nics=nics):
            assert _matrix(text).nics == nics


def test_hash_knows_paths_and_nothing_else():
    """Equal nodes have equal hashes whatever their NICs are called and their containers may use."""
    plain = _matrix().topology_hash()

    renamed = _matrix(NEW.replace("mlx5_0", "ibp1s0").replace("0-31,64-95", "0-7"))
    assert renamed.topology_hash() == plain
    swapped = NEW.replace("PXB\tSYS\t0-31", "SYS\tPXB\t0-31").replace("SYS\tPXB\t32", "PXB\tSYS\t32")
    assert _matrix(swapped).topology_hash() == plain
    assert _matrix(NEW.replace("NV12", "NV6")).topology_hash() != plain
    assert _matrix(NEW.replace("GPU0\t X \tNV12\tPXB", "GPU0\t X \tNV12\tPIX")).topology_hash() != plain


def test_cut_rows_are_refused(subtests):
    """A matrix that lost cells must not be judged."""
    for cut in range(60, 105, 7):
        with subtests.test(cut=cut), pytest.raises(InputError, match="cut off"):
            _matrix(NEW[:cut])


def test_unknown_words_stay_unknown():
    """A path of a future driver is no reason to refuse the rest."""
    assert parse_link("C2C").path is Path.UNKNOWN
    assert _matrix(NEW.replace("NV12", "C2C")).link(0, 1).word == "C2C"


@given(st.lists(st.text(alphabet="GPU01NIC XSYNV \t12\x1b[4m:", max_size=40), max_size=12))
def test_any_text_is_a_matrix_or_refused(lines):
    try:
        matrix = parse_matrix(["\tGPU0\tGPU1\tCPU Affinity", *lines], "any")
    except InputError:
        return
    assert len(dataclasses.asdict(matrix)["links"]) == len(matrix.gpus) * (len(matrix.gpus) + len(matrix.nics))
    assert matrix.topology_hash()
