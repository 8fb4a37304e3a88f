"""Origin of each NCCL variable: log, files and this machine."""

import json

import pytest
from read_log import read_log

from ncclt.health.doctor import diagnose
from ncclt.health.doctor.conf_file import parse_conf_file
from ncclt.health.doctor.examine import examine_files
from ncclt.health.doctor.facts import Facts, JobRun
from ncclt.health.doctor.machine import machine_facts
from ncclt.health.doctor.settings import find_settings
from ncclt.nccl.variables import masked
from ncclt.profile.record.ranks import RankReport

PREFIX = "node-a:100:200 [0] NCCL INFO"


def _found(facts):
    return {(row.name, row.value): (row.set_by, row.processes) for row in find_settings(facts)}


@pytest.mark.shared
def test_public_logs_tell_who_set_what(subtests, shared_data):
    """NCCL calls it the environment what a shell, a file and a program have set; a plugin names itself."""
    logs = {
        "traces/nccl_log/eunomia_tuning_2.29.7.log": {("NCCL_P2P_DISABLE", "1"): ("unknown: no file of --from", 2)},
        "traces/nccl_log/wayne_tuning_2.29.2_g2_auto.log": {},
        "field/05a_tuner_without_symbol.log": {
            ("NCCL_TUNER_PLUGIN", "/opt/site/libnccl-net-site.so"): ("unknown: no file of --from", 2)
        },
        "field/05b_tuner_not_found.log": {
            ("NCCL_TUNER_PLUGIN", "/opt/site/libtuner.so"): ("unknown: no file of --from", 2)
        },
        "field/07_net_plugin_sets_proto.log": {("NCCL_PROTO", "simple"): ("plugin NET/OFI", 2)},
        "field/15b_forced_in_nccl_log.log": {
            ("NCCL_ALGO", "Tree"): ("unknown: no file of --from", 16),
            ("NCCL_PROTO", "LL"): ("unknown: no file of --from", 16),
        },
    }
    for name, expected in logs.items():
        with subtests.test(name):
            assert _found(examine_files([shared_data / name]).facts) == expected


def test_command_lines_and_scripts_in_a_log_are_sources():
    log = read_log(
        "+ export NCCL_IB_HCA=mlx5_0,mlx5_1",
        "+ mpirun -np 16 -x NCCL_ALGO=Tree ./train",
        f"{PREFIX} NCCL_IB_HCA set by environment to mlx5_0,mlx5_1",
        f"{PREFIX} NCCL_ALGO set by environment to Ring",
    )

    assert _found(Facts(log=log)) == {
        ("NCCL_IB_HCA", "mlx5_0,mlx5_1"): ("traced command (job.log:1)", 1),
        ("NCCL_ALGO", "Tree"): ("traced command (job.log:2)", 0),
        ("NCCL_ALGO", "Ring"): ("unknown: no file of --from", 1),
    }


def test_a_text_that_names_a_variable_sets_nothing():
    log = read_log(
        "hint: export NCCL_ALGO=Tree",
        "for deterministic results use NCCL_ALGO=Tree",
        "+ echo NCCL_ALGO=Tree",
        "+ mpirun ./train --note NCCL_ALGO=Tree",
        "mpirun -x NCCL_ALGO=Tree ./train  # starts 8 ranks",
        f"{PREFIX} NCCL_ALGO set by environment to Tree",
    )

    assert _found(Facts(log=log)) == {("NCCL_ALGO", "Tree"): ("unknown: no file of --from", 1)}


def test_of_a_command_line_nothing_is_kept_but_its_nccl_variables():
    command = "mpirun -x WANDB_API_KEY=k123 -x NCCL_ALGO=Tree -x NCCL_SITE_TOKEN=t456 ./train --password p789"
    glued = f"+ WANDB_API_KEY=k123 srun ./train {PREFIX} NCCL_PROTO set by environment to LL"
    log = read_log(f"+ {command}", f"[1,0]<stdout>:+ {command}", glued)
    machine = Facts(conf_files=(parse_conf_file(["WANDB_API_KEY=k123\n", "export NCCL_IB_HCA=mlx5_0\n"], "nccl.conf"),))

    printed = json.dumps([diagnose(facts).to_document() for facts in (Facts(log=log), machine)])
    assert not [secret for secret in ("k123", "t456", "p789", "mpirun", "srun") if secret in printed]
    assert log.assigned["NCCL_ALGO"]["Tree"].text == "NCCL_ALGO=Tree"
    assert list(log.assigned["NCCL_SITE_TOKEN"]) == [masked("NCCL_SITE_TOKEN", "t456")]
    assert "export NCCL_IB_HCA=mlx5_0" in printed


def test_a_process_counts_once_for_a_value_that_its_plugin_sets_too():
    log = read_log(
        f"{PREFIX} NCCL_PROTO set by environment to simple",
        f"{PREFIX} NET/OFI Setting NCCL_PROTO to simple",
    )

    assert _found(Facts(log=log)) == {("NCCL_PROTO", "simple"): ("plugin NET/OFI", 1)}


def test_this_machine_and_the_ranks_of_a_job_are_compared_with_itsread_log(tmp_path):
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/nccl.conf").write_text("NCCL_IB_TIMEOUT=22\nNCCL_IB_HCA=mlx5_9\n")
    machine = machine_facts({"NCCL_IB_HCA": "mlx5_0", "NCCL_DEBUG": "WARN"}, root=tmp_path, home=tmp_path)
    log = read_log(
        f"{PREFIX} NCCL_IB_HCA set by environment to mlx5_0.",
        f"{PREFIX} NCCL_IB_TIMEOUT set by environment to 22.",
        f"{PREFIX} NCCL_BUFFSIZE set by environment to 8388608.",
        f"{PREFIX} NCCL_ALGO set by environment to Ring.",
        f"{PREFIX} NCCL_DEBUG set by environment to INFO.",
    )
    rank = RankReport(
        rank=0,
        state="recorded",
        steps_seen=3,
        started_with=(("NCCL_IB_HCA", "mlx5_0"), ("NCCL_IB_SL", "1")),
        set_inside=(("NCCL_BUFFSIZE", "8388608"),),
    )
    job = JobRun(argv=("train",), exit_code=0, ended_by_ncclt="", wall_s=1.0, programs=(rank,))
    facts = Facts(here=True, log=log, job=job, environment=machine.environment, conf_files=machine.conf_files)

    assert _found(facts) == {
        ("NCCL_IB_HCA", "mlx5_0"): ("shell", 1),
        ("NCCL_IB_HCA", "mlx5_9"): (str(tmp_path / "etc/nccl.conf"), 0),
        ("NCCL_IB_TIMEOUT", "22"): (str(tmp_path / "etc/nccl.conf"), 1),
        ("NCCL_BUFFSIZE", "8388608"): ("program, in Python", 1),
        ("NCCL_IB_SL", "1"): ("launcher or script", 0),
        ("NCCL_ALGO", "Ring"): ("unknown: not this shell, nor a file of this node", 1),
    }


def test_communicators_of_one_shape_are_joined_and_keep_their_choices():
    def start(comm, pid, rank, ranks, nodes):
        of = f"comm 0x{comm}{rank} rank {rank}"
        return (
            f"n:{pid}:{pid} [{pid}] NCCL INFO ncclCommInitRankConfig {of} nranks {ranks} cudaDev {pid} nvmlDev {pid} "
            f"busId 1000 commId 0x{comm} - Init START",
            f"n:{pid}:{pid} [{pid}] NCCL INFO {of} nRanks {ranks} nNodes {nodes} localRanks 2 localRank 0 MNNVL 0",
            f"n:{pid}:{pid} [{pid}] NCCL INFO {4 * ranks} coll channels, 32 p2p channels, 2 p2p channels per peer",
        )

    log = read_log(
        *start("a", 0, 0, 4, 2),
        *start("b", 1, 0, 2, 1),
        *start("c", 2, 0, 2, 1),
        *start("c", 3, 1, 2, 1),
        "n:0:0 [0] NCCL INFO AllReduce: 1024 Bytes -> Algo TREE proto LL channel{Lo..Hi}={0..0}",
        "n:1:1 [1] NCCL INFO AllGather: 64 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..0}",
        "n:2:2 [2] NCCL INFO AllGather: 128 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..0}",
        "n:9:9 [7] NCCL INFO AllGather: 128 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..0}",
    )

    kinds = log.communicators()
    assert [(kind.count, kind.ranks, kind.nodes, kind.channels["coll"]) for kind in kinds] == [
        (1, 4, 2, 16),
        (2, 2, 1, 8),
    ]
    assert [[(c.operation, c.choice, c.calls, c.pid) for c in kind.choices] for kind in kinds] == [
        [("AllReduce", "TREE/LL", 1, 0)],
        [("AllGather", "RING/LL", 1, 1), ("AllGather", "RING/LL", 1, 2)],
    ]
