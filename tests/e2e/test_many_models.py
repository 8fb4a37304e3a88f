"""`ncclt tune --models`: one launch serves several workloads, each of which ends as if it had been tuned alone."""

import json

CLUSTER = ("--cluster", "mi355x-2x8")
JOB = (*CLUSTER, "--nodes", 2, "--gpus-per-node", 8, "--nccl-version", "2.28.3", "--allow", "recorded")


def tune(ncclt, *words, rc=0):
    return ncclt("tune", *words, *CLUSTER, "--launcher", "replay", "--storage", "sqlite:///ncclt.db", rc=rc)


def test_each_model_has_its_own_verdict_and_its_own_answer_for_jobs(ncclt):
    words = ("--models", "bert,vit-l-32")
    planned = json.loads(tune(ncclt, *words, "--dry-run", "--json").stdout)
    assert len(planned["studies"]) == 2
    assert not (ncclt.folder / "ncclt.db").exists()

    first = tune(ncclt, *words, "--json").stdout
    bert, vit = json.loads(first)["models"]
    launches = json.loads(first)["launches"]

    assert [bert["study"], vit["study"]] == planned["studies"]
    assert (bert["model"], bert["verdict"]) == ("bert", "keep-default")
    assert (vit["model"], vit["verdict"]) == ("vit-l-32", "tuned")
    assert all(model["label"].startswith("recorded: ") for model in (bert, vit))
    assert bert["launches"]["search"] == vit["launches"]["search"] > 0
    assert bert["launches"]["verify"] == 0 < vit["launches"]["verify"]
    assert launches == sum(vit["launches"].values()), "those of the one that was proven served both"

    store = ("--storage", "sqlite:///ncclt.db")
    assert vit["recommendation"]["id"] in ncclt("env", "--model", "vit-l-32", *JOB, *store).stdout
    table = ncclt("env", "--model", "vit-l-32", *JOB, *store, "--format", "tuner-csv").stdout
    assert sum(line.startswith("allreduce,") for line in table.splitlines()) == len(vit["policy"]["rules"])
    assert bert["recommendation"]["id"] in ncclt("env", "--model", "bert", *JOB, *store).stdout

    again = json.loads(tune(ncclt, "--models", "all", "--json").stdout)
    assert [model["study"] for model in again["models"]] == [bert["study"], vit["study"]]
    assert again["launches"] == launches, "it is finished"

    shown = tune(ncclt, *words).stdout
    assert "model: bert\n" in shown
    assert "model: vit-l-32\n" in shown
    assert f"launches: {launches} in all, for 2 models\n" in shown


def test_what_cannot_be_tuned_together_is_refused_with_a_hint(ncclt):
    for words, said in (
        (("--models", "bert"), "--models needs two or more different workloads, not bert"),
        (("--models", "bert,bert"), "--models needs two or more different workloads, not bert, bert"),
        (("--models", "bert,gpt2", "--model", "bert"), "give --model or --models, not both"),
        (("--models", "all"), "nothing was tuned on mi355x-2x8 yet"),
        (("--models", "bert,nothing"), "nothing"),
    ):
        assert said in tune(ncclt, *words, rc=None).stderr
        assert tune(ncclt, *words, rc=None).returncode not in (0, 1)
