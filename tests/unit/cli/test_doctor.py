"""`ncclt doctor` as a user calls it."""

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from ncclt.cli.doctor import doctor
from ncclt.errors import UsageError
from ncclt.testing.samples import sample_cluster, sample_recommendation

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "doctor"


@pytest.fixture
def call(command):
    """Return a caller of the command that gives exit code and output."""

    def run(*words):
        app = typer.Typer()
        app.command()(doctor)
        done = CliRunner(env={"NCCLT_STORAGE": command.url}).invoke(app, [*words], standalone_mode=False)
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        code = done.return_value if isinstance(done.return_value, int) else done.exit_code
        return code, done.stdout

    return run


# Checked by eye: everything that is wrong is found, and nothing else is.
SET_UPS = {
    "healthy_h100": (0, "healthy", ""),
    "fallback_4xa100": (1, "broken", "TOP001 NET002 TOP006"),
    "old_pcie_box": (
        4,
        "degraded",
        "TOP004 TOP005 TOP007 ENV008 ENV009 CNF001 CNF001 CNF001 CNF001 CNF001 CNF001 GPU001 GPU002 GPU003 GPU004 "
        "GPU005 ENV011 CNF005 GPU007 GPU009",
    ),
    "sockets_a100": (1, "broken", "NET001 RNK001 RNK002 RNK003 ENV001 TOP003 TOP004 TOP005 ENV006 LOG001"),
}


def test_exit_code_and_document(call, subtests):
    """0 = nothing found, 4 = warnings, 1 = nothing should be measured here."""
    for case, (code, verdict, rules) in SET_UPS.items():
        with subtests.test(case=case):
            ended, printed = call("--from", str(GOLDEN / case), "--json")
            document = json.loads(printed)
            assert (ended, document["schema"], document["verdict"]) == (code, 1, verdict)
            assert " ".join(finding["id"] for finding in document["findings"]) == rules


def test_page_shows_few_values_of_a_variable_that_differs_on_every_rank(call, tmp_path):
    lines = (f"n:{rank}:{rank} [0] NCCL INFO NCCL_HOSTID set by environment to h{rank}" for rank in range(100))
    (tmp_path / "job.log").write_text("\n".join(lines))
    _, printed = call("--from", str(tmp_path / "job.log"))

    assert "NCCL_HOSTID  ... 96 more values (--json)" in printed
    assert printed.count("NCCL_HOSTID") < 20
    assert len(json.loads(call("--from", str(tmp_path / "job.log"), "--json")[1])["settings"]) == 100


def test_published_settings_are_shown_beside_those_of_a_log(call, tmp_path):
    prefix = "node-a:100:200 [0] NCCL INFO"
    lines = (
        "Using network FasTrak",
        "NCCL_ALGO set by environment to Ring,Tree.",
        "NCCL_BUFFSIZE set by environment to 1.",
    )
    (tmp_path / "job.log").write_text("".join(f"{prefix} {line}\n" for line in lines))
    _, printed = call("--from", str(tmp_path / "job.log"))

    assert "network like that of GCP A3 Mega, GPUDirect-TCPXO: 1 of 18 variables are set as published\n" in printed
    assert " ".join(printed.split("NCCL_BUFFSIZE")[2].split()[:2]) == "8388608 1"
    assert (
        "  source https://docs.nvidia.com/dgx-cloud/run-ai/1.2/appendix-gcp.html; a difference is not an error"
        in printed
    )


def test_this_machine_is_examined_without_from(call, monkeypatch):
    """Whatever machine the test runs on: a variable of the environment is found."""
    monkeypatch.setenv("NCCL_PROTO", "LL128")
    ended, printed = call("--json")

    assert ended == 1
    assert "ENV001" in {finding["id"] for finding in json.loads(printed)["findings"]}


def test_rules_are_listed(call):
    _, printed = call("--rules")
    _, document = call("--rules", "--json")

    rules = json.loads(document)["rules"]
    assert len(rules) > 40
    assert all(f"{rule['id']} {rule['severity']}: {rule['title']}" in printed for rule in rules)


def test_a_recommendation_must_not_be_contradicted(call, command, tmp_path):
    """A line of nccl.conf that sets otherwise what was proven."""
    command.store.clusters.add(sample_cluster())
    command.store.revisions.publish(sample_recommendation("1"))
    (tmp_path / "nccl.conf").write_text("NCCL_ALGO=Ring\n")

    _, printed = call("--from", str(tmp_path), "--cluster", "pair", "--model", "toy", "--json")
    (finding,) = [found for found in json.loads(printed)["findings"] if found["id"] == "CNF003"]
    assert finding["what"] == "nccl.conf sets NCCL_ALGO=Ring, which overrules the recommended tuner table"


@pytest.mark.parametrize(
    "words",
    [
        ("--model", "bert"),
        ("--launcher", "local"),
        ("--launcher", "simulate", "--gpus-per-node", "2"),
        ("--from", str(GOLDEN), "--launcher", "local"),
        ("--from", str(GOLDEN), "--launcher-option", "container=i"),
        ("--hosts", "a,b"),
    ],
)
def test_options_that_make_no_sense(call, words):
    with pytest.raises(UsageError):
        call(*words)


def test_an_unusable_file_is_no_finding_of_severity_error(call, tmp_path):
    """Exit code 1 says that a finding is an error; the one of a UsageError is 2."""
    (tmp_path / "empty.log").touch()
    with pytest.raises(UsageError, match="empty"):
        call("--from", str(tmp_path / "empty.log"))


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("node1:902:902 [0] NCCL INFO AllReduce: opCount 0 sendbuff 0x7f count 1024", "no line of a start"),
        ("node1:902:902 [0] NCCL WARN something of this job", "no line of a start"),
        (
            "node1:902:912 [0] NCCL INFO ncclCommInitRank comm 0x5 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 1b000 "
            "commId 0x7 - Init COMPLETE",
            "no connection",
        ),
    ],
)
def test_a_log_that_does_not_tell_of_a_start_is_no_proof_of_health(call, tmp_path, line, why):
    """What could not be examined is named, with the variables that log it, and scripts see it by the exit code."""
    log = tmp_path / "job.log"
    log.write_text(f"{line}\n")
    ended, printed = call("--from", str(log), "--json")
    document = json.loads(printed)

    warned = any(finding["severity"] == "warning" for finding in document["findings"])
    assert (ended, document["verdict"]) == (4, "degraded" if warned else "incomplete")
    (transports,) = [part for part in document["examined"] if part["part"] == "transports"]
    assert (transports["by"], transports["why"]) == ([], f"{why} in job.log")
    assert "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT," in transports["how"]
    assert f"({why} in job.log)" in call("--from", str(log))[1]


def test_people_see_matrix_evidence_and_advice(call):
    _, printed = call("--from", str(GOLDEN / "sockets_a100"))

    assert "GPU0  X     NV4   NV4   NV4   PXB     SYS     0-31" in printed
    assert "NET/Socket x1, SHM x1" in printed
    assert "error NET001: ranks talk over TCP sockets although there is a faster network" in printed
    assert "seen node1.log:18: node1:902:912 [1] NCCL INFO Channel 00/0" in printed
    assert printed.index("error RNK001") < printed.index("warning TOP003")
    assert printed.endswith(
        "verdict: broken (5 errors, 5 warnings); driver and GPUs were not examined (no `nvidia-smi -q -x`)\n"
    )
