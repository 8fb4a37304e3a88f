"""Persistent ranks on other hosts: rank 0 finds its way back, and nothing is left on any node."""

import runpy
from dataclasses import replace
from pathlib import Path

import pytest

from ncclt.core.message import Collective, Message
from ncclt.core.setting import DEFAULT, Setting
from ncclt.core.trial import Outcome
from ncclt.launch.launcher import JobShape
from ncclt.launch.slurm.launcher import SlurmLauncher
from ncclt.launch.ssh.launcher import SshLauncher
from ncclt.measure import PersistentRunner
from ncclt.measure.benchmarks.torch_collectives import TorchCollectives
from ncclt.nccl.switching import SwitchCost
from ncclt.testing.samples import sample_cluster

pytest.importorskip("torch.distributed")
LEFTOVERS = runpy.run_path(str(Path(__file__).parents[1] / "fakes" / "leftovers.py"))
PATIENCE_S = 120.0
CLUSTER = replace(sample_cluster("two"), gpus_per_node=1, link_gbps=10.0, nics_per_node=1, nccl_version="2.30.7")
MESSAGE = Message(collective=Collective.ALL_REDUCE, dtype="float32", size_bytes=4096, group_size=2, spans_nodes=True)
CTAS, WRONG_NAME = Setting(channels=2), Setting(channels=3)
SAID = {CTAS: {"NCCL_MIN_CTAS": "2"}}


def measured(launcher, **options):
    """Measure five trials and return the runner that did; its ranks have ended."""
    runner = PersistentRunner(
        benchmark=TorchCollectives(backend="gloo", budget_s=0.02, timeout_s=PATIENCE_S / 2),
        launcher=launcher,
        cluster=CLUSTER,
        variables=lambda setting: SAID.get(setting, {}),
        host="127.0.0.1",
        **options,
    )
    try:
        for setting in (DEFAULT, CTAS, DEFAULT, DEFAULT):
            result = runner.measure(setting, [MESSAGE], repeat=0)
            assert result.outcome is Outcome.OK, result.detail
            assert [m.message for m in result.measurements] == [MESSAGE]
        environment = runner._session.environment
        assert environment["nodes"] == [[0], [1]]
    finally:
        runner.close()
    assert runner.switches == {SwitchCost.PROCESS: 1, SwitchCost.COMMUNICATOR: 2, SwitchCost.CALL: 1}
    return runner


def test_ranks_stay_on_two_nodes_of_slurm(slurm_cluster, tmp_path):
    """Each node has a table of its own; the step ends with the ranks."""
    with slurm_cluster.allocation() as environment:
        launcher = SlurmLauncher.create(
            shape=JobShape(nodes=2), environment=environment | {"WORD": "stays-under-slurm"}
        )
        before = {path.name for path in Path("/dev/shm").glob("ncclt-torch-*")}
        (plugin := tmp_path / "plugin.so").touch()
        measured(launcher, plugin=plugin)
        assert {path.name for path in Path("/dev/shm").glob("ncclt-torch-*")} <= before
        assert slurm_cluster.steps() == []
        assert not LEFTOVERS["soon_gone"]("stays-under-slurm")


@pytest.mark.thorough
def test_the_token_reaches_hosts_by_ssh_in_no_command_line(sshd, tmp_path):
    shape = JobShape(nodes=len(sshd.hosts), hosts=tuple(sshd.hosts))
    launcher = SshLauncher(shape=shape, ssh_args=sshd.options)
    seen = []
    run = launcher.run

    def watched(plan):
        seen.append(plan)
        return run(plan)

    launcher.run = watched
    measured(launcher, scratch=tmp_path)
    (plan,) = seen
    words = plan.argv[plan.argv.index("--token") + 1 :] if "--token" in plan.argv else ()
    assert not words
    assert not any(len(word) == 64 and set(word) <= set("0123456789abcdef") for word in plan.argv)
    assert list(tmp_path.iterdir()) == []
