"""The generator of the shipped landscapes reads public tables and their prose, and recognises or refuses defaults."""

import importlib.util
import re
import shutil
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclt.core.algorithms import Algorithm
from ncclt.core.message import Collective
from ncclt.core.setting import Setting
from ncclt.errors import InputError

SCRIPT = Path(__file__).resolve().parents[4] / "profiles" / "generate_landscapes.py"


def _module():
    spec = importlib.util.spec_from_file_location("generate_landscapes", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


GENERATOR = _module()


@pytest.fixture
def script(monkeypatch, tmp_path):
    """The script, on a copy of the shipped tables, called with words and giving its exit status."""
    module = _module()
    module.LANDSCAPES = Path(shutil.copytree(SCRIPT.parent / "landscapes", tmp_path / "landscapes"))

    def run(*words):
        monkeypatch.setattr(sys, "argv", [SCRIPT.name, *map(str, words)])
        return module.main()

    run.module = module
    return run


@pytest.mark.shared
def test_shipped_tables_are_those_of_the_generator(script, shared_data, capsys):
    folder = shared_data / "measurements"
    assert script(folder, "--check") == 0
    changed = script.module.LANDSCAPES / "h100-1x4.csv"
    whole = changed.read_bytes()
    changed.write_bytes(whole.replace(b"1187.29", b"1187.3"))
    (script.module.LANDSCAPES / "unknown.csv").touch()
    assert script(folder, "--check") == 1
    said = capsys.readouterr().err
    assert [line.split()[0] for line in said.splitlines()] == ["h100-1x4.csv", "unknown.csv"]
    assert script(folder) == 0
    assert changed.read_bytes() == whole


def test_a_check_without_the_originals_is_skipped_visibly(script, tmp_path, capsys):
    script.module.MEASUREMENTS = tmp_path / "none"
    assert script("--check") == 0
    assert "skipped" in capsys.readouterr().err


def test_a_missing_original_writes_nothing(script, tmp_path, capsys):
    before = {path: path.read_bytes() for path in script.module.LANDSCAPES.iterdir()}
    assert script(tmp_path) == 1
    assert "mi355x_rccl_2node_allreduce_grid.csv cannot be read" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in script.module.LANDSCAPES.iterdir()} == before


@pytest.mark.shared
def test_a_shipped_table_whose_default_is_not_recognised_is_refused_by_name(script, shared_data, tmp_path, capsys):
    folder = Path(shutil.copytree(shared_data / "measurements", tmp_path / "originals"))
    table = folder / "rtx4090x4_shm_and_k500sm_channels.csv"
    forced = re.sub(r'(4x RTX 4090.*?),,,,,,"default, mean of 3"', r"\1,Ring,LL,64,,,mean of 3", table.read_text())
    table.write_text(forced)
    before = {path: path.read_bytes() for path in script.module.LANDSCAPES.iterdir()}
    assert script(folder) == 1
    said = capsys.readouterr().err
    assert "rtx4090x4_shm_and_k500sm_channels.csv: no row for rtx4090-1x4 is recognised as the NCCL default of" in said
    assert {path: path.read_bytes() for path in script.module.LANDSCAPES.iterdir()} == before


@pytest.mark.shared
def test_every_public_table_is_converted(shared_data):
    """With what it may be: none is refused, and each names what it leaves out."""
    for path in sorted((shared_data / "measurements").glob("*.csv")):
        originals, notes = GENERATOR.read_originals(path)
        assert originals, path
        assert all(note.startswith(f"{path.name}: ") for note in notes)


COLUMNS = (*GENERATOR.REQUIRED, *GENERATOR.OPTIONAL)
FORCED = {"algo": "Ring", "proto": "LL"}


def row(**fields):
    base = {
        "system": "8x H100-SXM5",
        "gpus": 8,
        "nodes": 1,
        "interconnect": "NVLink4 NVSwitch",
        "nccl_version": "2.28.9",
        "collective": "all_reduce",
        "size_bytes": 1024,
        "time_us": 10,
        "in_place": 0,
    }
    values = {**base, **fields}
    return ",".join(f'"{values.get(column, "")}"' for column in COLUMNS)


def originals(folder, *rows, columns=COLUMNS):
    path = folder / "public.csv"
    path.write_text("\n".join([",".join(columns), *rows]) + "\n", encoding="utf-8")
    return GENERATOR.read_originals(path)


def labels(one):
    return [(row.setting.label, row.time_us) for row in one.rows]


def test_the_default_has_many_names(tmp_path):
    notes = ("DEFAULT (unforced): RCCL chose TREE/LL 1 channels", "DEFAULT unforced, rep1", "median; automatic")
    (one,), _ = originals(
        tmp_path,
        row(algo="DEFAULT (unforced)", proto="auto"),
        row(**FORCED, time_us=8),
        *(row(algo="Tree", proto="LL", nchannels=1, other_env=note, time_us=11) for note in notes),
    )
    assert labels(one) == [("default", 10), ("ring/ll", 8), *[("default", 11)] * 3]
    assert [row.repetition for row in one.rows if row.setting.is_default] == [1, 2, 3, 4]


def test_substituted_and_failed_rows_and_rows_without_figures_are_left_out_and_counted(tmp_path):
    (one,), notes = originals(
        tmp_path,
        row(),
        row(algo="Tree", proto="LL", other_env="SUBSTITUTED: RCCL ran Direct/SIMPLE/1"),
        row(algo="Tree", proto="LL", nchannels=4, other_env="NCCL ran Ring/LL/4"),
        row(algo="Ring", proto="LL", nchannels=4, other_env="RCCL ran Ring/LL/4"),
        row(**FORCED, other_env="WRONG=4"),
        row(time_us=""),
    )
    assert [label for label, _ in labels(one)] == ["default", "ring/ll c=4"]
    assert sorted(notes) == [
        "public.csv: 1 rows with failed validation are left out",
        "public.csv: 1 rows with neither a time nor a bandwidth are left out",
        "public.csv: 2 rows with another choice of the library than the one asked for are left out",
    ]


def test_a_list_of_algorithms_is_the_default_only_where_there_is_no_other(tmp_path):
    both = row(algo="Ring,Tree", time_us=12)
    (alone,), (note,) = originals(tmp_path, both, row(**FORCED))
    assert ("default", 12) in labels(alone)
    assert "Ring,Tree" in note
    (beside,), (note,) = originals(tmp_path, row(), row(**FORCED), both)
    assert labels(beside) == [("default", 10), ("ring/ll", 10)]
    assert "1 rows with several algorithms (Ring,Tree) are left out" in note


def test_conditions_systems_and_versions_split_a_table_and_out_of_place_times_are_taken(tmp_path):
    found, _ = originals(
        tmp_path,
        row(),
        row(**FORCED),
        row(other_env="contention high"),
        row(nccl_version="2.19.3"),
        row(system="4x L40S", gpus=4),
        row(in_place=1, time_us=99),
        row(in_place=1, time_us=99, **FORCED),
    )
    assert [(one.condition, len(one.rows)) for one in found] == [("", 2), ("contention high", 1), ("", 1), ("", 1)]
    assert labels(found[0]) == [("default", 10), ("ring/ll", 10)]


def test_parameters_spread_and_spellings_are_read(tmp_path):
    (one,), _ = originals(
        tmp_path,
        row(collective="AllReduce", other_env="spread 16.93%"),
        row(algo="nvls_tree", proto="SIMPLE", buffsize=8388608, other_env="NCCL_IB_QPS_PER_CONNECTION=4; median"),
    )
    assert one.rows[0].spread == pytest.approx(0.1693)
    assert one.rows[1].setting == Setting(
        algorithm=Algorithm.NVLS_TREE,
        protocol="simple",
        parameters=(("BUFFSIZE", 8388608), ("IB_QPS_PER_CONNECTION", 4)),
    )


def test_a_blank_time_is_computed_from_the_bandwidth(tmp_path):
    """busbw = algbw x 2 (n - 1) / n: 1 MB at 17.5 GB/s of bus bandwidth on 8 GPUs are 100 µs."""
    (one,), _ = originals(
        tmp_path,
        row(size_bytes=10**6, time_us="", busbw_gbps=17.5),
        row(size_bytes=10**6, time_us="", algbw_gbps=20, **FORCED),
    )
    assert [row.time_us for row in one.rows] == [pytest.approx(100.0), pytest.approx(50.0)]
    assert one.rows[0].collective is Collective.ALL_REDUCE


def test_the_cluster_is_guessed(tmp_path):
    fields = {
        "system": "2x 8xA100-SXM4-80GB",
        "gpus": 16,
        "nodes": 2,
        "nccl_version": "RCCL 2.22.3-x",
        "interconnect": "NVLink3 NVSwitch; 4x200Gb/s IB",
    }
    (one,), _ = originals(tmp_path, row(**fields))
    cluster = one.cluster
    assert (cluster.nodes, cluster.gpus_per_node, cluster.compute_capability) == (2, 8, 80)
    assert (cluster.link_class, cluster.fabric, cluster.nics_per_node, cluster.nic_gbps) == (
        "nvswitch",
        "infiniband",
        4,
        25.0,
    )
    assert (cluster.gpu, cluster.nccl_version) == ("A100-SXM4-80GB", "2.22.3")
    assert re.fullmatch(r"[a-z0-9-]+", cluster.name)
    (one,), _ = originals(tmp_path, row(nccl_version=""))
    assert one.cluster.nccl_version == GENERATOR.FALLBACK_VERSION


def test_a_damaged_public_table_is_refused_by_line(tmp_path, subtests):
    cases = [
        ((), "public.csv has no rows"),
        ((row(), row(algo="Butterfly")), "public.csv, line 3: unknown algo 'Butterfly'"),
        ((row(), row(time_us="nan")), "line 3: time_us"),
        ((row(), row(size_bytes="1K")), "line 3: size_bytes"),
        ((row(), row(nchannels=900)), "line 3: nchannels"),
        ((row(time_us=""), row(gpus="")), "no row of public.csv can be used"),
    ]
    for rows, words in cases:
        with subtests.test(rows=rows):
            with pytest.raises(InputError, match=re.escape(words)) as caught:
                originals(tmp_path, *rows)
            assert caught.value.hint


def test_a_duplicate_and_a_missing_column_are_refused(tmp_path):
    with pytest.raises(InputError, match="duplicate column 'time_us'"):
        originals(tmp_path, columns=(*COLUMNS, "time_us"))
    with pytest.raises(InputError, match="lacks the columns algo, time_us"):
        originals(tmp_path, columns=tuple(c for c in COLUMNS if c not in ("algo", "time_us")))


def test_annotations_are_no_condition(subtests):
    cases = [
        "",
        "spread 0.4%",
        "repeat iteration_3",
        "run 2",
        "default, mean of 3",
        "default chose TREE/LL128; spread 1.9%",
        "GPU compute contention ",
        "p50",
        "median",
        "avg of oop/ip busbw",
        "mean of 20 iters",
        "r2 avg",
        "automatic",
        "WRONG=0",
        "  ",
    ]
    for text in cases:
        with subtests.test(text=text):
            assert GENERATOR._condition(text) == ""


def test_anything_else_is_a_condition_without_its_annotations(subtests):
    cases = [
        ("GPU compute contention low", "GPU compute contention low"),
        ("sequential | metric=iteration time", "sequential; metric=iteration time"),
        ("T1aM4 + NCCL_CHECKS_DISABLE; p50", "T1aM4 + NCCL_CHECKS_DISABLE"),
        ("CUDA graph, 127 calls/graph, median; automatic", "CUDA graph, 127 calls/graph"),
        ("QPS=4 SPLIT=1 avg of oop/ip busbw", "QPS=4 SPLIT=1 avg of oop/ip busbw"),
        ("NCCL_CROSS_NIC=1; spread 3%", "NCCL_CROSS_NIC=1"),
    ]
    for text, condition in cases:
        with subtests.test(text=text):
            assert GENERATOR._condition(text) == condition


@given(st.text(max_size=60))
def test_a_condition_is_its_own_condition(text):
    once = GENERATOR._condition(text)
    assert GENERATOR._condition(once) == once
