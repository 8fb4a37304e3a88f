"""`ncclt tune --launcher local` with a stand-in for nccl-tests: real processes, real variables, invented times.

The stand-in knows nothing of NCCL but that a tree takes twice as long, so the default can only stay.
"""

import json
import re
import runpy
from pathlib import Path

import pytest

from ncclt.core.study import Arm
from ncclt.store import open_store

STORE = ("--storage", "sqlite:///ncclt.db")
STAND_IN = Path(__file__).resolve().parents[1] / "fakes" / "nccl_tests_stand_in.py"


@pytest.fixture
def tune(local):
    """The command up to its last options."""
    return (*local, "--trials", "8", "--blocks", "4", *STORE)


def test_settings_of_the_users_shell_are_an_arm_and_those_of_the_site_reach_every_trial(ncclt, tune):
    ncclt.variables |= {"NCCL_ALGO": "Tree", "NCCL_IB_HCA": "mlx5_0", "NCCL_P2P_DISABLE": "1", "NCCL_DEBUG": "INFO"}
    done = ncclt(*tune, "-v")

    assert "The A/B test also measures what you run today: NCCL_ALGO=Tree" in done.stderr
    assert "keep-default: for nasnetmobile on dgx-a100, your settings cost 100.0 % (95 % CI" in done.stdout
    assert ": unset NCCL_ALGO" in done.stdout
    assert "kept in every trial (variables of the site): NCCL_IB_HCA" in done.stdout + done.stderr
    assert "ncclt: doctor: ENV006: NCCL_P2P_DISABLE=1 is set" in done.stderr, "no verdict can name its cost"
    with open_store(f"sqlite:///{ncclt.folder}/ncclt.db") as store:
        (study,) = (entry.study for entry in store.studies.page(limit=5).items)
        trials = store.trials.find(study.id)
        (found,) = store.recommendations.find(study=study.id)
    evidence = ncclt("studies", "show", "--evidence", study.id, *STORE).stdout
    assert "NCCL default over what you run today (NCCL_ALGO): tuned: communication is faster: +100.0 %" in evidence
    assert evidence.count("recomputed: same") == 1
    assert found.today.variables == study.today == (("NCCL_ALGO", "Tree"),)
    assert found.fingerprint.site_variables == (("NCCL_IB_HCA", "mlx5_0"), ("NCCL_P2P_DISABLE", "1"))
    assert {trial.arm for trial in trials} >= {Arm.DEFAULT, Arm.TODAY}
    removed = {
        (trial.arm, *re.findall(r"-u (NCCL_[A-Z_]+)", command))
        for trial in trials
        for command in trial.result.commands
        if trial.setting.is_default and trial.policy is None
    }
    assert removed == {
        (None, "NCCL_ALGO", "NCCL_DEBUG"),
        (Arm.DEFAULT, "NCCL_ALGO", "NCCL_DEBUG"),
        (Arm.TODAY, "NCCL_DEBUG"),
    }


def test_recheck_has_the_baseline_of_the_verdict_in_the_shell_of_the_study_alone(ncclt, tune):
    runpy.run_path(str(STAND_IN))["install"](ncclt.folder / "nccl-tests", factors={"tree": 2, "ring": 0.8})
    ncclt.variables["NCCL_ALGO"] = "Tree"
    assert "communicates 2.50x faster than what you run today" in ncclt(*tune).stdout
    again = ("recheck", *tune[1 : tune.index("--trials")], *STORE)
    assert "gain of the policy over what you run today" in ncclt(*again).stdout
    del ncclt.variables["NCCL_ALGO"]
    other = ncclt(*again)
    assert "this shell does not set exactly NCCL_ALGO=Tree" in other.stderr
    assert "what you run today" not in other.stdout
    assert "fresh: nasnetmobile" in other.stdout


def test_equal_times_keep_the_default_and_nothing_is_simulated(ncclt, tune):
    document = json.loads(ncclt(*tune, "--json").stdout)

    assert (document["verdict"], document["simulated"], document["launcher"]) == ("keep-default", False, "local")
    labels = [t["label"] for t in document["trials"]]
    assert labels[0] == "default"
    assert not any("ll128" in label for label in labels), "LL128 cannot be forced by variables safely"
    default_us = document["trials"][0]["time_per_step_us"]
    trees_us = [t["time_per_step_us"] for t in document["trials"] if t["label"].startswith("tree")]
    assert trees_us == pytest.approx([2 * default_us] * len(trees_us))
    assert trees_us, "the variables of a setting reach the command, so some trial is slower"
