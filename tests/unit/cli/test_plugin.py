"""`ncclt admin plugin path|build|check`."""

import json

import pytest
from typer.testing import CliRunner

from ncclt.cli.application import app
from ncclt.nccl.tuner_plugin.build import compiler

TABLE = "allreduce,0,65536,tree,ll,2,2,16\nallreduce,65537,9223372036854775807,ring,simple,-1,2,16\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    if compiler() is None:
        pytest.skip("no C compiler here: the plugin cannot be built")
    return tmp_path_factory.mktemp("data")


@pytest.fixture
def ncclt(folder, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(folder))
    monkeypatch.delenv("NCCLT_PLUGIN", raising=False)
    return lambda *words: CliRunner().invoke(app, ["admin", "plugin", *map(str, words)])


def test_build_path_and_check_go_together(ncclt, tmp_path):
    built = ncclt("build")
    assert built.exit_code == 0
    assert ncclt("path").stdout == built.stdout

    table = tmp_path / "table.csv"
    table.write_text(TABLE)
    shown = ncclt("check", table, "--ranks", 16, "--nodes", 2, "--size", "64K", "--size", "1G")
    assert shown.exit_code == 0
    assert shown.stdout == (
        "all_reduce 65536: tree ll, 2 channels\nall_reduce 1073741824: ring simple, NCCL's own channels\n"
    )
    assert "2 of 2 rows for 16 ranks on 2 nodes" in shown.stderr

    rows = ncclt("check", table, "--ranks", 16, "--nodes", 2).stdout.splitlines()
    assert [row.partition(": ")[2] for row in rows] == ["tree ll, 2 channels", "ring simple, NCCL's own channels"]
    none = ncclt("check", table, "--ranks", 16, "--nodes", 2, "--collective", "broadcast").stdout.splitlines()
    assert (len(none), {row.partition(": ")[2] for row in none}) == (6, {"the NCCL default"})

    other = ncclt("check", table, "--ranks", 8, "--json")
    assert other.exit_code == 1
    document = json.loads(other.stdout)
    assert (document["works"], document["api_versions"]) == (False, [3, 4, 5, 6, 7])
    assert "none of its 2 rows is for 8 ranks on 1 nodes" in document["said"]
    assert {row["algorithm"] for row in document["choices"]} == {""}

    assert ncclt("check").exit_code == 0
    assert ncclt("check", "--size", "4X").exit_code == 2
    assert ncclt("check", "--collective", "send_recv").exit_code == 2


def test_more_channels_than_an_older_nccl_has_are_no_contradiction(ncclt, tmp_path):
    """As the demo's own recommendation has them."""
    ncclt("build")
    table = tmp_path / "table.csv"
    table.write_text("allreduce,33583104,39951872,ring,ll128,40,2,16\n")
    shown = ncclt("check", table, "--ranks", 16, "--nodes", 2)
    assert (shown.exit_code, shown.stdout) == (0, "all_reduce 36767488: ring ll128, 40 channels\n")


def test_without_a_plugin_path_says_how_to_build_one(ncclt, monkeypatch, tmp_path):
    monkeypatch.setenv("NCCLT_PLUGIN", str(tmp_path / "gone.so"))

    result = ncclt("path")

    assert (result.exit_code, result.stdout) == (3, "")
    assert "ncclt admin plugin build" in result.stderr
