"""Loading recorded landscapes: what is read, what is chosen, what is refused and how it is said."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclt.core.algorithms import Algorithm, Protocol
from ncclt.core.message import Collective, Message
from ncclt.core.policy import Policy, Rule
from ncclt.core.setting import DEFAULT, Setting
from ncclt.core.workload import MessageCalls, Provenance, Workload
from ncclt.errors import LandscapeError
from ncclt.measure.simulated import Landscape, load_landscape

COLUMNS = (
    "system", "gpus", "nodes", "gpus_per_node", "interconnect", "nccl_version", "collective", "dtype", "size_bytes",
    "algo", "proto", "nchannels", "buffsize", "nthreads", "other_env", "time_us", "algbw_gbps", "busbw_gbps",
    "in_place",
)  # fmt: skip
RING_LL = Setting(algorithm=Algorithm.RING, protocol=Protocol.LL)


def row(**fields: object) -> str:
    base = {
        "system": "8x H100-SXM5", "gpus": 8, "nodes": 1, "gpus_per_node": 8, "interconnect": "NVLink4 NVSwitch",
        "nccl_version": "2.28.9", "collective": "all_reduce", "size_bytes": 1024, "time_us": 10, "in_place": 0,
    }  # fmt: skip
    values = {**base, **fields}
    return ",".join(f'"{values.get(column, "")}"' for column in COLUMNS)


NO_NOISE = "no spread was recorded, so launches do not differ and the interval says nothing about noise"
FORCED = {"algo": "Ring", "proto": "LL"}
TWO = (row(), row(**FORCED, time_us=8), row(size_bytes=4096, time_us=40), row(size_bytes=4096, **FORCED, time_us=32))


def write(folder: Path, *rows: str, columns: tuple[str, ...] = COLUMNS) -> Path:
    path = folder / "recorded.csv"
    path.write_text("\n".join([",".join(columns), *rows]) + "\n", encoding="utf-8")
    return path


def message(size: int, collective: Collective = Collective.ALL_REDUCE, **changes) -> Message:
    return Message(collective=collective, dtype="float16", size_bytes=size, **changes)


@pytest.fixture
def two(tmp_path: Path) -> Landscape:
    return load_landscape(write(tmp_path, *TWO), {})


def test_what_was_recorded_can_be_asked_for(two):
    assert two.settings() == (RING_LL,)
    assert two.time_samples(RING_LL, message(1024)) == (8.0,)
    assert two.time_samples(DEFAULT, message(4096)) == (40.0,)
    assert two.time_samples(Setting(channels=2), message(1024)) == ()
    assert two.notes == ()


def test_between_recorded_sizes_the_logarithms_are_interpolated(two):
    """Times proportional to the size stay proportional."""
    assert two.time_samples(DEFAULT, message(2048)) == (pytest.approx(20.0),)
    assert not two.is_exact(RING_LL, message(2048))


@given(size=st.integers(1024, 4096))
def test_an_interpolated_time_lies_between_its_neighbours(tmp_path_factory, size):
    landscape = load_landscape(write(tmp_path_factory.mktemp("l"), *TWO), {})
    (time_us,) = landscape.time_samples(DEFAULT, message(size))
    assert 10.0 <= time_us <= 40.0 + 1e-9


def test_only_the_recorded_range_of_the_whole_job_is_covered(two):
    assert two.covers(message(1024))
    assert two.covers(message(4096, group_size=8))
    assert not two.covers(message(1023))
    assert not two.covers(message(8193))
    assert not two.covers(message(2048, group_size=4))
    assert not two.covers(message(2048, Collective.BROADCAST))
    assert two.time_samples(DEFAULT, message(8193)) == ()
    assert two.time_samples(DEFAULT, message(1023)) == ()


def test_up_to_twice_the_largest_size_its_bandwidth_applies_and_that_is_said(two):
    assert two.covers(message(6144))
    assert two.time_samples(DEFAULT, message(6144)) == (pytest.approx(60.0),)
    assert not two.is_exact(DEFAULT, message(6144))
    assert two.caveats([message(1024)]) == (NO_NOISE,)
    assert two.caveats([message(1024), message(6144)]) == (
        NO_NOISE, "extrapolated at the bandwidth of the largest recorded size: all_reduce 6 KiB",
    )  # fmt: skip


def test_no_setting_is_extrapolated_beside_a_default_that_was_recorded(tmp_path):
    landscape = load_landscape(write(tmp_path, *TWO, row(size_bytes=16384, time_us=160)), {})
    assert landscape.time_samples(DEFAULT, message(6144))
    assert landscape.time_samples(RING_LL, message(6144)) == ()
    assert not landscape.covers(message(6144))


def test_a_size_at_which_only_the_default_was_recorded_offers_no_choice(tmp_path):
    landscape = load_landscape(write(tmp_path, *TWO, row(size_bytes=64, time_us=3)), {})
    assert landscape.time_samples(DEFAULT, message(64)) == (3.0,)
    assert not landscape.covers(message(64))


def test_the_best_possible_policy_is_found_by_exhaustive_search(tmp_path):
    """Per message the fastest, but with one value of a process-wide parameter for all."""
    path = write(
        tmp_path, *TWO, row(algo="Ring", proto="Simple", time_us=16), row(size_bytes=4096, algo="Ring", proto="Simple",
        time_us=20), row(buffsize=8388608, time_us=9), row(size_bytes=4096, buffsize=8388608, time_us=10),
    )  # fmt: skip
    landscape = load_landscape(path, {})
    calls = tuple(MessageCalls(message=message(size), calls_per_step=n) for size, n in ((1024, 10.0), (4096, 1.0)))
    workload = Workload(name="w", messages=calls, provenance=Provenance(source="test"))
    assert landscape.best_us(workload) == pytest.approx(10 * 8 + 20)
    always_ll = Policy(rules=(Rule(collective=Collective.ALL_REDUCE, algorithm=Algorithm.RING, protocol=Protocol.LL),))
    assert landscape.speedups(workload, always_ll) == pytest.approx((140 / 100, 140 / 112))


def test_what_the_library_substituted_is_no_measurement_of_what_was_asked_for(tmp_path):
    path = write(
        tmp_path, *TWO, row(algo="Tree", proto="LL", other_env="SUBSTITUTED: RCCL ran Direct/SIMPLE/1"),
        row(algo="Tree", proto="LL", nchannels=4, other_env="NCCL ran Ring/LL/4"),
        row(algo="Ring", proto="LL", nchannels=4, other_env="RCCL ran Ring/LL/4"),
        row(size_bytes=2048, other_env="RCCL ran Ring/LL128/48"),
    )  # fmt: skip
    landscape = load_landscape(path, {})
    assert [s.label for s in landscape.settings()] == ["ring/ll", "ring/ll c=4"]
    assert landscape.is_exact(DEFAULT, message(2048))
    assert landscape.notes == ("2 rows with another choice of the library than the one asked for were left out",)


def test_the_librarys_own_choice_has_many_names(tmp_path):
    path = write(
        tmp_path, row(algo="DEFAULT (unforced)", proto="auto"), row(other_env="DEFAULT (unforced); n=20", time_us=11),
        row(algo="Ring", proto="LL128", nchannels=12, other_env="median; automatic", time_us=12), *TWO[1:2],
    )  # fmt: skip
    assert load_landscape(path, {}).time_samples(DEFAULT, message(1024)) == (10.0, 11.0, 12.0)


@pytest.mark.parametrize("note", ["DEFAULT (unforced): RCCL chose TREE/LL 1 channels", "DEFAULT unforced, rep1"])
def test_default_notes_are_no_condition(tmp_path, note):
    """The columns then name the library's choice, not a forced setting."""
    path = write(tmp_path, row(algo="Tree", proto="LL", nchannels=1, other_env=note, time_us=11), TWO[1])
    landscape = load_landscape(path, {})
    assert landscape.settings() == (RING_LL,)
    assert landscape.time_samples(DEFAULT, message(1024)) == (11.0,)
    assert landscape.notes == ()


def test_duplicate_column_is_refused(tmp_path):
    path = write(tmp_path, *TWO, columns=(*COLUMNS[:-1], "time_us"))
    with pytest.raises(LandscapeError, match=r"recorded\.csv, line 1: the column 'time_us' is there twice"):
        load_landscape(path, {})


def test_a_list_of_algorithms_is_the_default_only_where_there_is_no_other(tmp_path):
    both = row(algo="Ring,Tree", time_us=12)
    alone = load_landscape(write(tmp_path, both, TWO[1]), {})
    assert alone.time_samples(DEFAULT, message(1024)) == (12.0,)
    assert "Ring,Tree" in alone.notes[0]
    beside = load_landscape(write(tmp_path, *TWO, both), {})
    assert beside.time_samples(DEFAULT, message(1024)) == (10.0,)
    assert beside.notes == ("1 rows with several algorithms (Ring,Tree) were left out: no setting forces a list",)


def test_a_condition_that_all_rows_share_does_not_split_them(tmp_path):
    rows = [
        row(other_env=f"CUDA graph, median{more}", **forced) for more in ("", "; SHARP=1") for forced in ({}, FORCED)
    ]
    landscape = load_landscape(write(tmp_path, *rows), {})
    assert landscape.settings() == (RING_LL,)
    assert landscape.notes == ("condition: CUDA graph; there are also rows with 'CUDA graph; SHARP=1'",)


def test_spread_and_repeats_are_the_noise_from_launch_to_launch(tmp_path):
    path = write(
        tmp_path, row(other_env="spread 16.93%"), row(**FORCED, time_us=8), row(**FORCED, time_us=9, other_env="run 2"),
        *TWO[2:],
    )  # fmt: skip
    landscape = load_landscape(path, {})
    assert landscape.sigma(DEFAULT, message(1100)) == pytest.approx(0.1)
    assert landscape.sigma(RING_LL, message(1024)) == pytest.approx(0.0833, abs=1e-3)
    assert landscape.sigma(DEFAULT, message(4096)) == 0
    (noise,) = landscape.caveats([message(1024), message(4096)])
    assert noise.startswith("launches differ by the spread that was recorded: 10 % for the default; 1 of 2 messages")


def test_a_pair_that_a_collective_does_not_have_leaves_it_to_nccl(tmp_path):
    path = write(
        tmp_path, *TWO, row(algo="Tree", proto="LL", time_us=9), row(collective="broadcast", time_us=5),
        row(collective="alltoall", time_us=6),
    )  # fmt: skip
    landscape = load_landscape(path, {})
    tree = Setting(algorithm=Algorithm.TREE, protocol=Protocol.LL)
    assert landscape.time_samples(tree, message(1024)) == (9.0,)
    assert landscape.time_samples(tree, message(1024, Collective.BROADCAST)) == (5.0,)
    assert landscape.time_samples(replace(tree, channels=8), message(1024, Collective.BROADCAST)) == (5.0,)
    assert landscape.time_samples(RING_LL, message(1024, Collective.ALL_TO_ALL)) == (6.0,)
    assert landscape.time_samples(RING_LL, message(1024, Collective.BROADCAST)) == ()


def test_repeats_become_samples_and_wrong_rows_are_dropped(tmp_path):
    path = write(
        tmp_path, *TWO, row(**FORCED, time_us=9, other_env="repeat iteration_2"),
        row(**FORCED, time_us=1, other_env="WRONG=4"), row(time_us="", busbw_gbps=""),
    )  # fmt: skip
    landscape = load_landscape(path, {})
    assert landscape.time_samples(RING_LL, message(1024)) == (8.0, 9.0)
    assert sorted(landscape.notes) == [
        "1 rows with failed validation were left out",
        "1 rows with neither a time nor a bandwidth were left out",
    ]


def test_spellings_of_the_tables_are_understood(tmp_path):
    path = write(
        tmp_path, row(collective="AllReduce"), row(collective="all-reduce", algo="NVLSTree", proto="SIMPLE"),
        row(collective="sendrecv"), row(algo="nvls_tree", nchannels=8, buffsize=8388608, nthreads=256),
    )  # fmt: skip
    settings = load_landscape(path, {}).settings()
    assert settings[0].algorithm is Algorithm.NVLS_TREE
    assert (
        Setting(algorithm=Algorithm.NVLS_TREE, channels=8, parameters=(("BUFFSIZE", 8388608), ("NTHREADS", 256)))
        in settings
    )


def test_a_blank_time_is_computed_from_the_bandwidth(tmp_path):
    """busbw = algbw x 2 (n - 1) / n: 1 MB at 17.5 GB/s of bus bandwidth on 8 GPUs are 100 µs."""
    size = 1_000_000
    path = write(
        tmp_path, row(size_bytes=size, time_us="", busbw_gbps=17.5),
        row(size_bytes=size, time_us="", algbw_gbps=20, **FORCED),
    )  # fmt: skip
    landscape = load_landscape(path, {})
    assert landscape.time_samples(DEFAULT, message(size)) == (pytest.approx(100.0),)
    assert landscape.time_samples(RING_LL, message(size)) == (pytest.approx(50.0),)


def test_the_cluster_is_guessed_and_said(tmp_path):
    fields = {"system": "2x 8xA100-SXM4-80GB", "gpus": 16, "nodes": 2, "nccl_version": "RCCL 2.22.3-x",
              "interconnect": "NVLink3 NVSwitch; 4x200Gb/s IB"}  # fmt: skip
    landscape = load_landscape(write(tmp_path, row(**fields), row(**fields, **FORCED)), {})
    cluster = landscape.cluster
    assert (cluster.nodes, cluster.gpus_per_node, cluster.compute_capability) == (2, 8, 80)
    assert (cluster.link_class, cluster.fabric, cluster.nics_per_node, cluster.nic_gbps) == (
        "nvswitch", "infiniband", 4, 25.0,
    )  # fmt: skip
    assert cluster.gpu == "A100-SXM4-80GB"
    assert cluster.nccl_version == "2.22.3"
    assert any("RCCL" in note for note in landscape.notes)
    assert re.fullmatch(r"[a-z0-9-]+", cluster.name)


def test_an_unknown_version_has_a_fallback_that_is_said(tmp_path):
    rows = (row(nccl_version=""), row(nccl_version="", **FORCED))
    landscape = load_landscape(write(tmp_path, *rows), {})
    assert any("not given" in note and landscape.cluster.nccl_version in note for note in landscape.notes)


def test_out_of_place_is_taken_where_both_are_there(tmp_path):
    inplace = [r.replace('"0"', '"1"').replace('"10"', '"99"') for r in TWO]
    landscape = load_landscape(write(tmp_path, *TWO, *inplace), {})
    assert landscape.time_samples(DEFAULT, message(1024)) == (10.0,)
    assert landscape.notes == ("out-of-place times are used; in-place ones are also there",)


def test_rows_without_a_condition_are_taken_and_the_others_named(tmp_path):
    busy = [row(other_env="contention high", time_us=70), row(other_env="contention high", time_us=90, **FORCED)]
    path = write(tmp_path, *TWO, *busy)
    plain = load_landscape(path, {})
    assert plain.time_samples(DEFAULT, message(1024)) == (10.0,)
    assert "contention high" in plain.notes[0]
    chosen = load_landscape(path, {"other_env": "contention*"})
    assert chosen.time_samples(DEFAULT, message(1024)) == (70.0,)


def _options(error: LandscapeError) -> list[dict[str, str]]:
    """Return what the hint says to type, one choice per line."""
    found = []
    for line in error.hint.splitlines()[1:]:
        pairs = re.findall(r"--where (?:'([^']*)'|(\S+))", line)
        found.append(dict((quoted or plain).split("=", 1) for quoted, plain in pairs))
    return found


def test_more_than_one_landscape_is_refused_and_every_offered_option_leads_to_one(tmp_path):
    other = {"system": "4x L40S box", "gpus": 4, "gpus_per_node": 4, "interconnect": "PCIe Gen4"}
    path = write(
        tmp_path, *TWO, row(**other), row(**other, **FORCED), row(nccl_version="2.19.3"),
        row(nccl_version="2.19.3", **FORCED),
    )  # fmt: skip
    with pytest.raises(LandscapeError, match="holds 3 landscapes") as caught:
        load_landscape(path, {})
    options = _options(caught.value)
    assert len(options) == 3
    for where in options:
        assert load_landscape(path, where).settings() == (RING_LL,)


def test_more_than_one_condition_is_refused_likewise(tmp_path):
    rows = [row(other_env=env, **forced) for env in ("A=1; median", "B=2") for forced in ({}, FORCED)]
    path = write(tmp_path, *rows)
    with pytest.raises(LandscapeError, match="holds 2 conditions") as caught:
        load_landscape(path, {})
    assert [load_landscape(path, where).settings() for where in _options(caught.value)] == [(RING_LL,)] * 2


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ((), "has no rows"),
        ((row(), row(size_bytes=2048)), "only the default"),
        ((row(**FORCED), row(algo="Tree")), "no row of NCCL's own choice"),
        ((*TWO, row(collective="broadcast", **FORCED)), "no default row for broadcast"),
        ((row(), row(algo="Butterfly")), r"line 3: unknown algo 'Butterfly'"),
        ((row(), row(proto="LL256")), r"line 3: unknown proto"),
        ((row(), row(collective="gossip")), r"line 3: unknown collective"),
        ((row(), row(time_us="fast")), r"line 3: time_us is 'fast'"),
        ((row(), row(time_us=-1)), r"line 3: time_us"),
        ((row(), row(time_us="nan")), r"line 3: time_us"),
        ((row(), row(size_bytes="1K")), r"line 3: size_bytes"),
        ((row(), row(size_bytes=1.5)), r"line 3: size_bytes.*whole"),
        ((row(), row(nchannels=900)), r"line 3: nchannels"),
        ((row(nodes="x"), row()), r"line 2: nodes"),
        ((row(time_us=""), row(gpus="")), "no row of .* can be used"),
    ],
)
def test_tables_that_make_no_sense_are_refused_in_words(tmp_path, rows, words):
    with pytest.raises(LandscapeError, match=words) as caught:
        load_landscape(write(tmp_path, *rows), {})
    assert caught.value.hint


def test_missing_columns_are_named(tmp_path):
    path = write(tmp_path, columns=tuple(c for c in COLUMNS if c not in ("algo", "time_us")))
    with pytest.raises(LandscapeError, match="lacks the columns algo, time_us"):
        load_landscape(path, {})


def test_a_where_that_matches_nothing_lists_what_is_there(tmp_path):
    path = write(tmp_path, *TWO)
    with pytest.raises(LandscapeError, match=r"no row of .* has gpus=3") as caught:
        load_landscape(path, {"gpus": "3"})
    assert "'8'" in caught.value.hint
    with pytest.raises(LandscapeError, match="no column 'colour'"):
        load_landscape(path, {"colour": "red"})


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00\x01 not text", b"a,b\n1,2\n", b"{}"])
def test_files_that_are_no_tables_are_refused(tmp_path, content):
    path = tmp_path / "x.csv"
    path.write_bytes(content)
    with pytest.raises(LandscapeError):
        load_landscape(path, {})


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(LandscapeError, match="cannot be read"):
        load_landscape(tmp_path / "none.csv", {})
