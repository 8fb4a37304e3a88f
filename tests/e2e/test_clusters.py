"""Whole studies under real launchers, on CPUs: PyTorch's gloo in the place of NCCL.

One under torchrun that starts anew for each trial is in test_autotune.py.
"""

import importlib.util
import json

import pytest

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed"),
    pytest.mark.thorough,
]

# The fewest trials that show what a test is about: each is launched three times, for 8 s of CPU under torchrun.
GLOO = ("--benchmark", "torch_collectives", "--backend", "gloo")
STORE = ("--storage", "sqlite:///ncclt.db")


def test_persistent_ranks_search_and_fresh_ones_confirm(ncclt):
    (ncclt.folder / "mine.csv").write_text("collective,dtype,size_bytes,calls_per_step\nall_reduce,float32,65536,4\n")
    ncclt("profile", "import", "mine.csv", "--name", "mine", *STORE)
    words = (
        *("--model", "mine", "--nodes", 1, "--gpus-per-node", 2, "--launcher", "torchrun", *GLOO),
        *("--trials", 2, "--min-effect", 0, "--persistent", "--json", *STORE),
    )
    study = json.loads(ncclt("tune", *words).stdout)

    assert [(trial["outcome"], trial["warm"]) for trial in study["trials"]] == [("ok", True)] * 2
    shown = json.loads(ncclt("studies", "show", study["study"], "--json", *STORE).stdout)
    confirming = [trial for trial in shown["trials"] if trial["phase"] == "confirm"]
    assert confirming
    assert not any(trial["warm"] for trial in confirming)
    assert any("the search used persistent ranks" in note for note in study["notes"])


def test_slurm_study_of_two_launches_from_a_login_node_keeps_the_default_and_stands_for_no_gpu(ncclt, slurm_cluster):
    words = (
        *("--model", "nasnetmobile", "--cluster", "leonardo", "--nodes", 2, "--gpus-per-node", 1),
        *("--launcher", "slurm", *GLOO, "--trials", 2, "--json", *STORE),
    )
    ncclt.variables |= slurm_cluster.environment
    script = ncclt("tune", *words, "--dry-run").stdout
    assert "#SBATCH --nodes=2" in script

    ncclt.variables["NCCLT_STORE_IS_SHARED"] = "1"
    done = ncclt("tune", *words)

    study = json.loads(done.stdout)
    assert (study["verdict"], study["launcher"], study["cluster"]) == ("keep-default", "slurm", "leonardo-cpus")
    assert (study["nodes"], study["gpus_per_node"]) == (2, 1)
    assert {trial["outcome"] for trial in study["trials"]} == {"ok"}
    assert "submitted job" in done.stderr
    # What gloo measured stands for no GPU of that cluster.
    ncclt("env", "--cluster", "leonardo", "--model", "nasnetmobile", *STORE, rc=3)
    slurm_cluster.wait_until_empty()
