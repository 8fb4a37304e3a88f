"""A calibration finds the constants of a cluster again, and says what it does not know."""

import itertools
from dataclasses import replace

import pytest

from ncclt.core.algorithms import Algorithm, Protocol
from ncclt.core.calibration import Calibration, Constant
from ncclt.core.cluster import Cluster
from ncclt.core.cluster_file import cluster_toml, parse_cluster_toml
from ncclt.core.message import Collective, Message
from ncclt.core.setting import DEFAULT, Setting
from ncclt.errors import InputError, UsageError
from ncclt.measure.simulated import SimulatedRunner
from ncclt.measure.simulated.calibrate import ObservedPoint, calibrate, choose_probes, require_possible
from ncclt.measure.simulated.observations import observed_in_table, observed_in_tests
from ncclt.measure.simulated.probes import observe, probe_candidates, probe_messages, probes
from ncclt.profile.readers.nccl_tests import read_tests
from ncclt.testing.landscapes import write_landscape

PLAIN = Cluster(
    name="d",
    nodes=2,
    gpus_per_node=4,
    gpu="A100",
    compute_capability=80,
    link_class="nvlink",
    link_gbps=300.0,
    fabric="infiniband",
    nics_per_node=4,
    nic_gbps=12.5,
    gpudirect=True,
    nccl_version="2.21.5",
)


def hidden(**factors: float) -> Cluster:
    """The cluster with other constants than ours: the real one."""
    constants = tuple(Constant(name=name, factor=value, low=value, high=value) for name, value in factors.items())
    known = Calibration(
        constants=constants, probed=True, points=0, error=0.0, least_bytes=1, most_bytes=1, least_nodes=2, most_nodes=2
    )
    return replace(PLAIN, calibration=known)


REAL = hidden(**{"hop.ll": 2.0, "net_hop.ll": 1.7, "hop.simple": 2.0, "net": 0.6, "net_channel": 0.7, "base.ll": 1.5})


def times(cluster: Cluster, settings, *, sizes=range(12, 29)) -> list[ObservedPoint]:
    runner = SimulatedRunner(cluster, seed=0, sigma=0)
    messages = [Message(collective=Collective.ALL_REDUCE, dtype="float32", size_bytes=1 << p) for p in sizes]
    return [
        ObservedPoint(nodes=2, setting=s, message=m, time_us=runner.expected_us(s, m))
        for s in settings
        for m in messages
    ]


def errors(calibration: Calibration | None, seen: list[ObservedPoint]) -> list[float]:
    runner = SimulatedRunner(replace(PLAIN, calibration=calibration), seed=0, sigma=0)
    return sorted(abs(runner.expected_us(one.setting, one.message) / one.time_us - 1) for one in seen)


def test_default_curves_calibrate_times_and_not_the_ranking():
    seen = times(REAL, [DEFAULT])
    found = calibrate(PLAIN, seen, sources=["a run"])
    assert errors(found, seen)[-1] < 0.05 < errors(None, seen)[len(seen) // 2]
    assert not found.probed
    assert "ranking not" in found.sentence
    assert found.sources == ("a run",)


def test_one_forced_setting_does_not_calibrate_the_ranking():
    """It has nothing to be compared with."""
    found = calibrate(PLAIN, times(REAL, [Setting(algorithm=Algorithm.TREE, protocol=Protocol.LL)]))
    assert "ranking not: all times are of one setting" in found.sentence


@pytest.mark.thorough
def test_a_dozen_probes_predict_every_other_setting():
    default = times(REAL, [DEFAULT])
    candidates = probe_candidates(PLAIN)
    chosen = probes(PLAIN, default, candidates)
    assert len(chosen) == 12
    assert len({(s.algorithm, s.protocol) for s in chosen}) >= 5, "they tell of different algorithms and protocols"
    found = calibrate(PLAIN, [*default, *times(REAL, chosen)])
    rest = times(REAL, [s for s in candidates if s not in chosen])
    assert found.probed
    assert errors(found, rest)[len(rest) // 2] < 0.05 < errors(None, rest)[len(rest) // 2]


def test_probes_tell_where_the_default_leaves_the_tree():
    """Else the fit bends the constants of a tree until it is as fast as the ring that really ran."""
    sizes = range(13, 29, 2)
    real = replace(REAL, calibration=replace(REAL.calibration, tree_bytes=1 << 19))
    default = times(real, [DEFAULT], sizes=sizes)
    forced = times(real, probe_candidates(PLAIN)[::2], sizes=(14, 20, 26))
    found = calibrate(PLAIN, [*default, *forced])
    assert found.tree_bytes == 1 << 19
    assert errors(found, default)[len(default) // 2] < 0.05
    assert calibrate(PLAIN, default).tree_bytes is None, "a fast tree would look the same"
    assert calibrate(PLAIN, [*times(REAL, [DEFAULT], sizes=sizes), *forced]).tree_bytes is None


def test_single_points_to_probe_are_spread_over_sizes_and_channels():
    points = times(PLAIN, probe_candidates(PLAIN))
    chosen = [points[at] for at in choose_probes(PLAIN, times(PLAIN, [DEFAULT]), [[one] for one in points], 12)]
    assert len({(one.setting.algorithm, one.setting.protocol) for one in chosen}) >= 5
    for one, other in itertools.combinations(chosen, 2):
        if one.setting == other.setting:
            ratio = one.message.size_bytes / other.message.size_bytes
            assert max(ratio, 1 / ratio) >= 8, "a size beside a known one tells little"


def test_one_outlier_does_not_pull_the_fit():
    seen = times(REAL, [DEFAULT])
    spoiled = [replace(one, time_us=one.time_us * 8) if at == 5 else one for at, one in enumerate(seen)]
    found = calibrate(PLAIN, spoiled)
    kept = [one for at, one in enumerate(seen) if at != 5]
    assert errors(found, kept)[len(kept) // 2] < 0.03


@pytest.mark.thorough
def test_intervals_hold_what_is_known_and_are_wide_where_nothing_is():
    found = calibrate(PLAIN, times(REAL, [DEFAULT, *probe_candidates(PLAIN)]))
    known = {one.name: one for one in found.constants}
    assert known["net"].low < 0.6 < known["net"].high
    assert known["net"].high / known["net"].low < 3
    assert not any(name.startswith("nvls") for name in known), "nothing ran NVLS"


def test_what_lies_beyond_the_fitted_range_is_named():
    found = calibrate(PLAIN, times(REAL, [DEFAULT]))
    assert found.beyond(1 << 20, 2) == found.beyond(1 << 29, 4) == ""
    assert found.beyond(1 << 30, 2) == "size"
    assert found.beyond(1 << 30, 8) == "size and nodes"
    assert found.beyond(1 << 20, 1) == "nodes", "times over the network say little about one node"
    assert replace(found, least_nodes=1, most_nodes=1).beyond(1 << 20, 2) == "nodes"
    large = replace(found, least_nodes=8, most_nodes=16)
    assert [nodes for nodes in (2, 3, 4, 8, 32, 33) if not large.beyond(1 << 20, nodes)] == [4, 8, 32]


def test_it_survives_toml_and_an_earlier_document_has_none():
    made = replace(PLAIN, calibration=calibrate(PLAIN, times(REAL, [DEFAULT])))
    assert parse_cluster_toml(cluster_toml(made), "x") == made
    assert Cluster.from_document(made.to_document()) == made
    assert "calibration" not in PLAIN.to_document()


def test_too_few_times_are_refused():
    with pytest.raises(UsageError, match="too few"):
        calibrate(PLAIN, times(REAL, [DEFAULT], sizes=range(12, 15)))


def test_a_table_has_times_of_one_shape(tmp_path):
    rows = [{"nodes": 2, "gpus_per_node": 4, "size_bytes": 4096 << p, "time_us": 50 + p} for p in range(6)]
    table = write_landscape(tmp_path / "t.csv", rows)
    assert [one.nodes for one in observed_in_table(table, replace(PLAIN, gpus_per_node=4)).seen] == [2] * 6
    with pytest.raises(InputError, match=r"times of nodes with 4 GPUs, and .* has 8 per node"):
        observed_in_table(table, replace(PLAIN, gpus_per_node=8))


def output(
    hosts: int, gpus: int, model: str = "NVIDIA A100-SXM4-80GB", *, host: str = "node{}", bus: str = "0000:{}0:00"
) -> str:
    """What all_reduce_perf prints, with one size."""
    lines = ["# Collective test starting: all_reduce_perf", "# nThread 1 nGpus 1 minBytes 8", "# Using devices"]
    for rank in range(hosts * gpus):
        node, gpu = divmod(rank, gpus)
        lines.append(
            f"#  Rank {rank:2} Group  0 Pid 7 on {host.format(node)} device {gpu:2} [{bus.format(gpu)}] {model}"
        )
    half = "     time   algbw   busbw #wrong"
    lines.append(f"#       size         count      type   redop    root{half}{half}")
    lines.append(
        "   1048576    262144     float     sum      -1    61.93   16.93   29.63   0    61.20   17.13   29.98   0"
    )
    return "\n".join(lines) + "\n"


def observed_in_output(path, cluster):
    return observed_in_tests(read_tests(path), path, cluster)


def test_an_output_counts_its_hosts_and_names_another_gpu(tmp_path):
    """32 ranks on 8 hosts are 8 nodes of 4 GPUs, and not 4 of 8."""
    log, eight = tmp_path / "all_reduce.log", replace(PLAIN, name="mine", gpu="A100-SXM4-80GB", gpus_per_node=8)
    log.write_text(output(8, 4))
    with pytest.raises(InputError, match="ran on 4 GPUs per host, and mine has 8 per node"):
        observed_in_output(log, eight)
    found = observed_in_output(log, replace(eight, gpus_per_node=4))
    assert ({one.nodes for one in found.seen}, len(found.notes)) == ({8}, 1)
    log.write_text(output(1, 8, bus="0x00"))  # as old versions print it
    with pytest.raises(InputError, match="ran on 8 GPUs per host, and mine has 4 per node"):
        observed_in_output(log, replace(eight, gpus_per_node=4))
    log.write_text(output(2, 8, "NVIDIA H100 80GB HBM3"))
    _, note = observed_in_output(log, eight).notes
    assert note.startswith("all_reduce.log is from NVIDIA H100 80GB HBM3 GPUs, and mine has A100-SXM4-80GB")
    log.write_text(output(2, 8, host="localhost"))  # containers that share a name
    assert {one.nodes for one in observed_in_output(log, eight).seen} == {2}


def test_a_forced_run_is_of_its_setting(tmp_path):
    log, command = tmp_path / "all_reduce.log", "mpirun -np 8 -x NCCL_ALGO=Tree -x NCCL_PROTO=LL ./all_reduce_perf\n"
    logged = "node0:7:7 [0] NCCL INFO NCCL_ALGO set by environment to Tree\n"
    for text, setting in (
        (command + output(2, 4), "tree/ll"),
        ("export NCCL_PROTO=LL\n" + output(2, 4), "auto/ll"),
        (output(2, 4).replace("# Using devices\n", f"# Using devices\n{logged}"), "tree/auto"),
        ("mpirun -genv NCCL_ALGO Tree -genv NCCL_PROTO LL -n 8 ./all_reduce_perf\n" + output(2, 4), "tree/ll"),
    ):
        log.write_text(text)
        found = observed_in_output(log, PLAIN)
        assert {one.setting.label for one in found.seen} == {setting}
        assert found.notes[0] == f"all_reduce.log was run with {setting}: taken as that"
    log.write_text(output(2, 4))
    assert {one.setting for one in observed_in_output(log, PLAIN).seen} == {DEFAULT}
    log.write_text("mpirun -x NCCL_IB_HCA=mlx5_0 ./all_reduce_perf\n" + output(2, 4))
    _, note = observed_in_output(log, PLAIN).notes
    assert note == "all_reduce.log was run with NCCL_IB_HCA=mlx5_0: the calibration holds with that"
    log.write_text("mpirun -x NCCL_PROTO=^LL ./all_reduce_perf\n" + output(2, 4))
    with pytest.raises(InputError, match="no setting of ncclt"):
        observed_in_output(log, PLAIN)
    log.write_text(f"{command}./all_reduce_perf\n" + output(2, 4))
    with pytest.raises(InputError, match="several command lines"):
        observed_in_output(log, PLAIN)


def test_a_run_without_communication_is_refused(tmp_path):
    log = tmp_path / "all_reduce.log"
    unknown = output(0, 1).replace("all_reduce_perf", "broadcast_perf")
    for text, reason in ((output(1, 1), "one rank"), (unknown, "how many ranks")):
        log.write_text(text)
        with pytest.raises(InputError, match=reason):
            observed_in_output(log, replace(PLAIN, gpus_per_node=1))


def test_a_time_that_the_ports_rule_out_is_refused():
    cluster = replace(PLAIN, name="mine", nics_per_node=4, nic_gbps=12.5)
    message = Message(collective=Collective.ALL_REDUCE, dtype="float32", size_bytes=10**9)
    seen = ObservedPoint(nodes=2, setting=DEFAULT, message=message, time_us=9200.0)
    require_possible(cluster, seen)
    with pytest.raises(
        UsageError, match=r"2 nodes of mine took 9000 µs, and its ports \(4 x 12.5 GB/s\) need 1e\+04 µs"
    ):
        require_possible(cluster, replace(seen, time_us=9000.0))
    require_possible(cluster, replace(seen, nodes=1, time_us=4500.0))


def test_times_of_another_nccl_are_named(tmp_path):
    log, mine = tmp_path / "all_reduce.log", replace(PLAIN, name="mine", nccl_version="2.28.9")
    banner = "# nccl-tests version 2.17.6 nccl-headers=22809 nccl-library={}\n"
    for nccl, others in (("22809", ()), ("22703", ("2.27.3",))):
        log.write_text(banner.format(nccl) + output(2, mine.gpus_per_node))
        said = [note for note in observed_in_output(log, mine).notes if "NCCL 2" in note]
        assert said == [
            f"all_reduce.log was measured with NCCL {other}, and mine has 2.28.9: choices may differ"
            for other in others
        ]
    log.write_text("node1:7:7 [0] NCCL INFO NCCL version 2.21.5+cuda12.4\n" + output(2, mine.gpus_per_node))
    assert "NCCL 2.21.5" in observed_in_output(log, mine).notes[-1]
    table = tmp_path / "t.csv"
    shape = {"nodes": 2, "gpus_per_node": mine.gpus_per_node}
    for nccl, count in (("2.28.9", 0), ("2.19.3", 1)):
        rows = [{**shape, "nccl_version": nccl, "size_bytes": 4096 << p, "time_us": 50 + p} for p in range(6)]
        write_landscape(table, rows)
        notes = observed_in_table(table, mine).notes
        assert [note for note in notes if "NCCL" in note] == [
            "t.csv was measured with NCCL 2.19.3, and mine has 2.28.9: choices may differ"
        ][:count]


def test_probes_of_a_simulated_cluster_say_so():
    found = observe(SimulatedRunner(PLAIN, seed=0), [DEFAULT, *probe_candidates(PLAIN)[:2]])
    assert len(found.seen) == 3 * len(probe_messages(PLAIN))
    assert "SIMULATED" in found.sources[0]
