"""What the issue promises to a newcomer, typed as it stands there."""

import json
import re
import runpy
import subprocess
import time
import urllib.request
from pathlib import Path

import pytest

free_port = runpy.run_path(str(Path(__file__).parents[1] / "fakes" / "ports.py"))["free_port"]
STORE = ("--storage", "sqlite:///ncclt.db")
LEONARDO = ("--gpus-per-node", "4", "--nccl-version", "2.22.3")
SIMULATED = ("--cluster", "leonardo", "--launcher", "simulate")
NASNET = ("tune", "--model", "nasnetmobile", *SIMULATED, "--nodes", "2", "--trials", "12", "--seed", "1")


def shape_of(document):
    """The options by which `ncclt env` knows the job that `tune --json` was for."""
    parts = ("nodes", "gpus_per_node", "nccl_version")
    return [word for part in parts for word in (f"--{part.replace('_', '-')}", str(document[part]))]


def test_a_second_run_resumes_and_measures_nothing_again(ncclt):
    words = ("tune", "--model", "bert", "--nodes", "2", "--launcher", "simulate")
    first, second = ncclt(*words), ncclt(*words)

    assert "SIMULATED: timings from NCCL's own cost model of leonardo" in first.stderr
    assert (
        "keep-default: keeping the NCCL default for bert on leonardo (demonstration on SIMULATED timings)"
        in first.stdout
    )
    assert len(first.stdout.splitlines()) == 4
    use = (
        "ncclt env --cluster leonardo --model bert --nodes 2 --gpus-per-node 4 --nccl-version 2.22.3 --allow simulated"
    )
    assert "Search space: 55 settings" in first.stderr
    assert "This study is finished: showing its result; --continue N adds trials" in second.stderr
    assert first.stdout == second.stdout
    listed = json.loads(ncclt("studies", "list", "--json").stdout)["studies"]
    assert len(listed) == 1
    assert "export NCCLT_SIMULATED=1" in ncclt(*use.split()[1:]).stdout


def test_without_a_gpu_and_a_cluster_real_measurements_are_replayed_and_every_result_says_so(ncclt):
    label = "recorded: AMD MI355X, 2 nodes x 8 GPUs, RoCE, RCCL, github.com/ylerman-dn/amd-dev"
    words = ("tune", "--model", "vit-l-32", "--nodes", "2", "--study", "vit")
    first, second = ncclt(*words), ncclt(*words)

    assert "No GPU or Slurm allocation found" in first.stderr
    assert ": replaying recorded MI355X timings\n" in first.stderr
    assert "demonstration: vit-l-32 on mi355x-2x8 communicates 1.11x faster than the NCCL default" in first.stdout
    assert "on recorded timings" in first.stdout
    assert "Exhaustive search: 1.110x. Found: 1.110x." in first.stdout
    assert len(first.stdout.splitlines()) <= 12
    assert label in " ".join(ncclt(*words, "-v").stdout.split())  # it may be longer than a line
    assert first.stdout == second.stdout
    document = json.loads(ncclt(*words, "--json").stdout)
    assert (document["label"], document["simulated"]) == (label, False)
    assert document["best_possible"]["speedup"] == pytest.approx(document["speedup"], rel=0.01)
    assert sum(document["launches"].values()) <= 60
    picture = ncclt("studies", "show", "vit", "--plot").stdout
    assert label in " ".join(picture.split())
    assert picture.count("all_reduce") == len(document["messages"])
    assert re.search(r"1\.1[12]x ring/ll128 c=", picture)
    assert max(map(len, picture.splitlines())) <= 80
    assert "demonstration on recorded timings" in ncclt("studies", "show", "vit", "--evidence").stdout
    recheck = ncclt("recheck", "--cluster", "mi355x-2x8", "--model", "vit-l-32").stdout
    assert "(recorded timings: a demonstration)" in recheck
    words = ("env", "--cluster", "mi355x-2x8", "--model", "vit-l-32", *shape_of(document))
    assert "is recorded, not measured there" in ncclt(*words, rc=3).stderr
    unchanged = ncclt("run", *words[1:], "--", "env")
    assert "NCCL_" not in unchanged.stdout
    assert "recorded, not measured there" in unchanged.stderr
    assert "--allow" not in first.stdout
    env = ncclt(*words, "--allow", "recorded")
    assert "export NCCLT_RECORDED=1" in env.stdout
    assert f"# {label}" in env.stdout
    assert label in env.stderr
    assert label in " ".join(ncclt("studies", "show", "vit").stdout.split())


def test_a_finished_study_spends_nothing_and_continue_adds_launches_and_a_proof_of_its_own(ncclt):
    ncclt.variables["KNOWN_TIMES"] = "1"  # a gain to prove
    words = (*NASNET[:-4], "--patience", "0", "--min-effect", "0", "--blocks", "3", *STORE, "--json")
    short, again, long, last = (
        json.loads(ncclt(*words, "--trials", "8", *more).stdout) for more in ((), (), ("--continue", "4"), ())
    )

    assert short == again
    assert long == last
    assert (len(short["trials"]), len(long["trials"])) == (8, 12)
    assert [t["label"] for t in long["trials"][:8]] == [t["label"] for t in short["trials"]]
    assert long["study"] == short["study"]
    assert long["launches"]["prove"] > short["launches"]["prove"]
    assert (short["recommendation"]["revision"], long["recommendation"]["revision"]) == (1, 2)


@pytest.fixture
def server(ncclt):
    """`ncclt serve` on a free port."""
    port = free_port()
    ncclt("admin", "store", "migrate", *STORE)
    process = ncclt.start("serve", "--port", str(port), *STORE)
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(1200):
            if process.poll() is not None:
                pytest.fail(process.communicate()[1])
            try:
                urllib.request.urlopen(f"{url}/readyz", timeout=1).close()
                break
            except OSError:
                time.sleep(0.2)
        yield url
    finally:
        process.terminate()
        process.communicate(timeout=240)


def test_server_store_and_curl_give_the_same_text_and_a_shell_takes_it_over(ncclt, server):
    ncclt(*NASNET, *STORE, "--quiet")
    names = ("--cluster", "leonardo", "--model", "nasnetmobile")
    words = ("env", *names, *LEONARDO, "--allow", "simulated", "--nodes", "2")

    fetched, stored = ncclt(*words, "--server", server), ncclt(*words, *STORE)
    job = "model=nasnetmobile&nodes=2&gpus_per_node=4&nccl_version=2.22.3&simulated=allow"
    with urllib.request.urlopen(f"{server}/v1/clusters/leonardo/env?{job}&format=export") as answer:
        curled = answer.read().decode()
        assert answer.headers["X-Ncclt-Simulated"] == "true"
    assert fetched.stdout == stored.stdout == curled
    assert "SIMULATED" in fetched.stdout
    shell = subprocess.run(
        ["bash", "-c", 'eval "$1"; echo "$NCCLT_SIMULATED"', "-", fetched.stdout],
        capture_output=True,
        text=True,
        check=True,
        timeout=240,
    )
    assert shell.stdout.strip() == "1"
    missing = ncclt(*words[:-1], "3", "--server", server, rc=3)
    assert missing.stdout == ""
    assert "nodes: measured with 2, asked for 3" in missing.stderr
