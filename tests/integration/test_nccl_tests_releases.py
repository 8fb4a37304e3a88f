"""What was found out about a build decides how it is asked, from nccl-tests 2.10 on; real processes, invented times."""

import os
from dataclasses import replace

import nccl_tests_stand_in
import pytest

from ncclt.core.message import Collective, Message
from ncclt.core.setting import DEFAULT
from ncclt.core.trial import Outcome
from ncclt.launch.local import LocalLauncher
from ncclt.measure import LaunchedRunner, ask_through
from ncclt.measure.benchmarks.nccl_tests.benchmark import NcclTests
from ncclt.measure.benchmarks.nccl_tests.features import detect
from ncclt.testing.samples import sample_cluster

RELEASES = ("2.10.0", "2.13.10", "2.14.0", "2.16.7", "2.17.3", "2.18.0", "2.19.2", "2.19.6")
WORLD = 8


def measure(folder, release, messages, *, processes=1, **variables):
    """Find out what a release can do, then launch once; several processes are one that is told to be the first."""
    nccl_tests_stand_in.install(folder, release=release)
    launcher = LocalLauncher(environment=os.environ)
    runner = LaunchedRunner(
        benchmark=NcclTests(
            folder=folder,
            features=detect(folder, run=ask_through(launcher), collectives=Collective),
            processes=processes,
        ),
        launcher=launcher,
        cluster=replace(sample_cluster("here", nodes=1), gpus_per_node=WORLD),
        variables=lambda _setting: {
            **({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": str(processes)} if processes > 1 else {}),
            **variables,
        },
    )
    return runner.measure(DEFAULT, messages, repeat=0)


def message(size_bytes=1 << 20, collective=Collective.ALL_REDUCE, group_size=WORLD, spans_nodes=False):
    return Message(
        collective=collective, dtype="float32", size_bytes=size_bytes, group_size=group_size, spans_nodes=spans_nodes
    )


@pytest.mark.parametrize(
    "release", [RELEASES[0], *(pytest.param(one, marks=pytest.mark.thorough) for one in RELEASES[1:-1]), RELEASES[-1]]
)
def test_every_release_is_asked_for_what_it_knows(release, tmp_path):
    """An option too many would print the usage; several collectives, and sizes that are no powers of two."""
    messages = [message(size, collective) for size in (1000, 1_000_000) for collective in Collective]
    result = measure(tmp_path, release, messages)
    assert (result.outcome, result.detail) == (Outcome.OK, "")
    assert [m.message for m in result.measurements] == messages
    assert not any(m.interpolated for m in result.measurements)


@pytest.mark.parametrize("release", ["2.16.7", "2.17.3", "2.18.0"])
def test_wrong_data_is_wrong_whatever_the_exit_code(release, tmp_path):
    """It was 1, then 6, and is 7 since 2.18."""
    assert measure(tmp_path, release, [message()], STAND_IN="wrong").outcome is Outcome.WRONG_RESULT


def test_groups_are_measured_beside_each_other(tmp_path):
    """One launch for each kind of group; all ranks of the job are listed, and those of the first group are counted."""
    messages = [message(group_size=4), message(group_size=2, spans_nodes=True), message()]
    result = measure(tmp_path, "2.19.6", messages, processes=WORLD)
    assert (result.outcome, result.detail) == (Outcome.OK, "")
    assert [m.message for m in result.measurements] == messages


def test_a_release_that_forms_no_groups_is_found_out(tmp_path):
    """It ignores the variable and runs on all ranks: these times must not be taken for those of a group."""
    result = measure(tmp_path, "2.13.10", [message(group_size=4)], processes=WORLD)
    assert result.outcome is Outcome.INVALID
    assert "ran on 8 ranks, but all_reduce 1 MiB float32 is sent by 4" in result.detail
