"""The options that say where trials run: none is passed over in silence."""

from pathlib import Path

import pytest

from ncclt.cli.testbed import TestbedOptions
from ncclt.errors import UsageError


@pytest.fixture(autouse=True)
def _no_allocation(monkeypatch):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"beside": "gemm"}, "--beside does not apply where trials are only simulated"),
        ({"backend": "gloo"}, "--backend does not apply"),
        ({"keep_env": True}, "--keep-env does not apply"),
        ({"nccl_tests": Path("build")}, "--nccl-tests does not apply"),
        ({"launcher": "replay", "landscape": Path("x.csv"), "parallel": 2}, "--parallel does not apply .* replayed"),
        ({"launcher": "replay"}, "needs --landscape"),
        ({"where": ("gpus=4",)}, "--where needs --landscape"),
        ({"launcher": "ssh", "hosts": "a", "hostfile": Path("b")}, "not both"),
        ({"parallel": 0}, "at least 1"),
    ],
)
def test_what_means_nothing_is_refused(given, said):
    options = TestbedOptions(**({"launcher": "simulate"} | given))
    with pytest.raises(UsageError, match=said):
        options.refuse_what_is_idle(options.choice())


@pytest.mark.parametrize("given", [{"launcher": "simulate", "parallel": 4}, {"launcher": "torchrun", "beside": "gemm"}])
def test_what_means_something_is_taken(given):
    options = TestbedOptions(**given)
    choice = options.choice()
    options.refuse_what_is_idle(choice)
    assert choice.name == given["launcher"]


def test_hosts_come_from_a_file_as_well(tmp_path):
    (tmp_path / "hosts").write_text("# rack 1\na slots=8\nme@b:2222\n")
    options = TestbedOptions(launcher="ssh", hostfile=tmp_path / "hosts")
    assert options.place(options.choice()).hosts == ("a", "me@b:2222")
