"""`ncclt cluster` as a user calls it."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ncclt.cli.cluster import app
from ncclt.errors import InputError, UsageError

GOLDEN = Path(__file__).resolve().parents[2] / "golden"
HEALTHY = str(GOLDEN / "doctor" / "healthy_h100")


@pytest.fixture
def call(command):
    """Return a caller of a subcommand that gives its standard output and standard error."""

    def run(*words):
        done = CliRunner(env={"NCCLT_STORAGE": command.url}).invoke(app, [*words], standalone_mode=False)
        if done.exception is not None:
            raise done.exception
        return done.stdout, done.stderr

    return run


def test_what_was_seen_becomes_a_cluster(call, command):
    printed, said = call("detect", "--from", HEALTHY, "--name", "mine", "--set", "description=rack 7")

    assert "link_gbps 450 GB/s (3600 Gb/s) topo.txt: 18 NVLinks of 25 GB/s" in " ".join(printed.split())
    assert "next: ncclt tune --model bert --cluster mine" in said
    assert command.store.clusters.get("mine").description == "rack 7"
    assert command.store.clusters.get("mine").nic_gbps == 50.0


def test_what_is_missing_is_asked_for_with_the_whole_command(call, command):
    topo = str(GOLDEN / "cluster" / "h100_sxm")
    with pytest.raises(UsageError) as refused:
        call("detect", "--from", topo, "--set", "description=two words", "--name", "two-words")

    assert refused.value.hint.startswith(
        f"give them, or pass more files: ncclt cluster detect --from {topo} --name two-words "
        "--set 'description=two words'"
    )
    assert refused.value.hint.endswith("--set gpudirect=... --set cpu=... --set nccl_version=...")
    assert f" --storage {command.url} " in refused.value.hint
    assert "two-words" not in {cluster.name for cluster, _ in command.store.clusters.entries()}


def test_a_dry_run_prints_a_file_that_add_takes(call, command, tmp_path):
    printed, _ = call("detect", "--from", HEALTHY, "--name", "mine", "--dry-run")
    assert "mine" not in {cluster.name for cluster, _ in command.store.clusters.entries()}
    (tmp_path / "mine.toml").write_text(printed)

    call("add", str(tmp_path / "mine.toml"))
    shown, _ = call("show", "mine", "--toml")
    (tmp_path / "again.toml").write_text(shown.replace('"mine"', '"again"', 1))
    call("add", str(tmp_path / "again.toml"))
    first, again = (command.store.clusters.get(name).to_document() for name in ("mine", "again"))
    assert first | {"name": "again"} == again
    assert 'nic_gbps = "50 GB/s"  # of one port, in one direction, 400 Gb/s' in shown


def test_every_shipped_cluster_goes_out_and_comes_back(call, command, tmp_path):
    for cluster, _ in command.store.clusters.entries():
        text, _ = call("show", cluster.name, "--toml")
        file = tmp_path / "one.toml"
        file.write_text(text.replace(f'"{cluster.name}"', '"copy"', 1))
        call("add", str(file), "--replace")
        assert command.store.clusters.get("copy").to_document() | {"name": cluster.name} == cluster.to_document()


def test_json_holds_the_sources_and_what_is_missing(call):
    printed, _ = call("detect", "--from", HEALTHY, "--dry-run", "--json")

    document = json.loads(printed)
    assert (document["schema"], document["missing"], document["contradictions"]) == (1, [], [])
    assert {"field": "driver", "value": "550.54.15", "source": "gpus.xml; gpus2.xml"} in document["fields"]


LEGEND = "\nLegend:\n\n  X    = Self\n  NV#  = Connection traversing a bonded set of # NVLinks\n"
P2P = " \tGPU0\tGPU1\n GPU0\tX\tOK\n GPU1\tOK\tX\n\nLegend:\n\n  X    = Self\n  OK   = Status Ok\n"
ROCM = (
    "============ ROCm System Management Interface ============\n=== Link Type between two GPUs ===\n"
    "       GPU0         GPU1\nGPU0   0            XGMI\nGPU1   XGMI         0\n"
)
NO_DRIVER = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "is empty"),
        (LEGEND, "holds the legend of `nvidia-smi topo -m` without its matrix"),
        (P2P, "has no paths between GPUs"),
        (ROCM, "is about AMD GPUs, which are not supported"),
        ("GPU[0]\t\t: GPU use (%): 0\n", "is about AMD GPUs, which are not supported"),
        (NO_DRIVER, "holds the failure of nvidia-smi"),
        ("sh: 1: nvidia-smi: not found\n", "holds the failure of nvidia-smi"),
        ("to be done\n", "is not a file that the doctor can read"),
        (Path(HEALTHY, "gpus.xml").read_text()[:1500], "is cut off or not XML"),
        (Path(HEALTHY, "topo.txt").read_text()[:300], "is cut off"),
    ],
)
def test_files_that_cannot_be_used(call, tmp_path, content, said):
    file = tmp_path / "saved.txt"
    file.write_text(content)

    with pytest.raises(InputError) as refused:
        call("detect", "--from", str(file))
    assert said in refused.value.message
    assert refused.value.hint


@pytest.mark.parametrize(
    "words",
    [
        ("detect", "--from", HEALTHY, "--launcher", "ssh"),
        ("detect", "--from", HEALTHY, "--set", "nic_gbps=..."),
        ("detect", "--launcher", "kubernetes"),
        ("detect", "--launcher", "simulate"),
        ("show", "leonardo", "--toml", "--json"),
    ],
)
def test_options_that_make_no_sense(call, words):
    with pytest.raises(UsageError):
        call(*words)


def test_a_machine_without_gpus_says_what_to_bring(call, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="could not detect") as refused:
        call("detect")
    assert "--set gpu=..." in refused.value.hint


@pytest.mark.parametrize("name", ["", "two words", "../../etc", "a\nb", "-x", "x" * 201, "hälle", "a/b"])
def test_a_new_cluster_has_a_name_by_the_rule_of_workloads(call, command, tmp_path, name):
    file = tmp_path / "cluster.toml"
    text, _ = call("show", "pcie-pair", "--toml")
    file.write_text(text.replace('"pcie-pair"', json.dumps(name), 1))
    refused = [("add", str(file)), ("add", str(file), "--replace"), ("add", str(file), "--dry-run")]
    if name:  # an empty one is the default
        refused += [("detect", "--from", HEALTHY, f"--name={name}")]
    for words in refused:
        with pytest.raises(UsageError, match="cannot name a cluster") as error:
            call(*words)
        assert "letters, digits" in error.value.hint
