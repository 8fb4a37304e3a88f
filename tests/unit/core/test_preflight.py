"""The record of a preflight: its words, its figures, its document."""

import json
from dataclasses import replace

import pytest

from ncclt.core.preflight import ExpectedSize, FabricFinding, Part, Preflight, ProbeReading, Section, State
from ncclt.core.trial import Outcome

HOSTS = ("a", "b", "c", "d")
GIB = 1 << 30


def reading(hosts, gbps, *, gpus=(), outcome=Outcome.OK, repeat=0, sizes=(GIB,)):
    """A launch on nodes of 8 GPUs that reached a bus bandwidth."""
    section = Section(hosts=tuple(hosts), gpus=tuple(gpus))
    ranks = section.ranks(8)
    times = tuple((size, size * 2 * (ranks - 1) / ranks / gbps / 1e3) for size in sizes) if gbps else ()
    return ProbeReading(
        section=section, ranks=ranks, repeat=repeat, outcome=outcome, times_us=times, expected_gbps=100.0, wall_s=2.0
    )


def sample_preflight(**changes):
    basis = Preflight(
        id="p1",
        created="2026-01-01T00:00:00",
        cluster="dgx",
        fingerprint="f",
        launcher="slurm",
        benchmark="nccl_tests",
        simulated=False,
        hosts=HOSTS,
        gpus_per_node=8,
        source="from link speeds",
        expected=(ExpectedSize(size_bytes=GIB, busbw_gbps=100.0),),
        tolerance=0.15,
        state=State.DEGRADED,
        findings=(
            FabricFinding(
                part=Part.NODE, hosts=("b",), busbw_gbps=60.0, reference_gbps=100.0, launches=3, remark="look"
            ),
            FabricFinding(part=Part.GPU_LINK, hosts=("c",), gpus=(2, 5), outcome=Outcome.TIMEOUT, reference_gbps=200.0),
        ),
        readings=(
            reading(HOSTS, 60.0),
            reading("ab", 60.0),
            reading("ab", 62.0, repeat=1),
            reading("cd", 100.0),
            reading("ac", 0, outcome=Outcome.CRASHED),
            reading("c", 50.0, gpus=(2, 5)),
            reading("c", 90.0, gpus=(2, 4)),
        ),
        notes=("a note",),
        wall_s=12.0,
    )
    return replace(basis, **changes)


def test_a_document_comes_back_as_it_was():
    preflight = sample_preflight()
    assert Preflight.from_document(json.loads(json.dumps(preflight.to_document()))) == preflight


def test_a_reading_knows_its_bandwidth_at_the_largest_size():
    one = reading("ab", 80.0, sizes=(64, GIB))
    assert one.gbps == pytest.approx(80.0)
    assert one.share == pytest.approx(0.8)
    assert reading("ab", 80.0, outcome=Outcome.WRONG_RESULT).share == 0


def test_rows_are_of_all_nodes_alone_and_medians():
    preflight = sample_preflight(readings=(reading(HOSTS, 50.0), reading(HOSTS, 60.0), reading("ab", 1.0)))
    (row,) = preflight.rows
    assert (row.size_bytes, row.expected_gbps) == (GIB, 100.0)
    assert row.busbw_gbps == pytest.approx(54.5, abs=0.1)


def test_rows_are_by_size_and_of_launches_that_went_well():
    readings = (reading(HOSTS, 50.0, sizes=(GIB, 64)), reading(HOSTS, 90.0, outcome=Outcome.WRONG_RESULT))
    small, large = sample_preflight(readings=readings).rows
    assert (small.size_bytes, large.size_bytes) == (64, GIB)
    assert (small.expected_gbps, large.expected_gbps) == (None, 100.0)
    assert small.busbw_gbps == pytest.approx(large.busbw_gbps) == pytest.approx(50.0)


def test_findings_in_words(subtests):
    for finding, words in [
        (
            FabricFinding(part=Part.NODE, hosts=("n07",), busbw_gbps=114, reference_gbps=187),
            "node n07 reaches 61 % of 187 GB/s with every partner",
        ),
        (
            FabricFinding(part=Part.LINK, hosts=("n07", "n12"), outcome=Outcome.TIMEOUT),
            "the link n07+n12 does not finish",
        ),
        (
            FabricFinding(part=Part.GPU, hosts=("n1",), gpus=(3,), outcome=Outcome.WRONG_RESULT),
            "GPU 3 of node n1 gives WRONG DATA with every partner",
        ),
        (
            FabricFinding(part=Part.GPU_LINK, hosts=("n1",), gpus=(3, 4), outcome=Outcome.CRASHED, remark="why"),
            "the link between GPU 3 and 4 of node n1 crashes; why",
        ),
        (
            FabricFinding(part=Part.FABRIC, hosts=("a", "b", "c", "d"), busbw_gbps=1, reference_gbps=2),
            "all of a..d (4 nodes) alike reaches 50 % of 2 GB/s",
        ),
        (
            FabricFinding(part=Part.GROUP, hosts=("a", "b"), outcome=Outcome.INVALID),
            "something among a+b does not start",
        ),
        (FabricFinding(part=Part.LINK, hosts=("a", "b"), busbw_gbps=1), "the link a+b reaches 0 % of 0 GB/s"),
    ]:
        with subtests.test(finding=finding, words=words):
            assert finding.sentence == words


def test_verdicts():
    assert (
        sample_preflight().verdict == "degraded: node b reaches 60 % of 100 GB/s with every partner; look (and 1 more)"
    )
    unmeasured = sample_preflight(state=State.UNMEASURED, findings=(), notes=("2 nodes left", "no such program"))
    assert unmeasured.verdict == "could not measure: no such program"
    silent = sample_preflight(state=State.UNMEASURED, findings=(), notes=())
    assert silent.verdict == "could not measure: no launch gave a result"
    alone = sample_preflight(state=State.HEALTHY, expected=(), readings=(reading(HOSTS, 98.0),))
    assert alone.verdict == "healthy: 98 GB/s measured, 98 GB/s expected from link speeds"
    healthy = sample_preflight(state=State.HEALTHY, findings=(), simulated=True, readings=(reading(HOSTS, 98.0),))
    assert healthy.verdict == "SIMULATED: healthy: 98 GB/s measured, 100 GB/s expected from link speeds"


def test_a_section_is_named_briefly_and_has_a_rank_for_each_gpu(subtests):
    for section, label, ranks in [
        (Section(hosts=("n03",)), "n03", 8),
        (Section(hosts=("n1", "n2", "n3")), "n1+n2+n3", 24),
        (Section(hosts=("n1", "n2", "n3", "n4")), "n1..n4 (4 nodes)", 32),
        (Section(hosts=("n03",), gpus=(0, 5)), "n03 GPU 0+5", 2),
    ]:
        with subtests.test(section=section, label=label, ranks=ranks):
            assert (section.label, section.ranks(8)) == (label, ranks)
