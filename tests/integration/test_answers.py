"""bench/answers.py on two nodes: a fault on one of them divides no job."""

import runpy
from pathlib import Path

import pytest

from ncclt.nccl.tuner_plugin.build import compiler

BENCH = runpy.run_path(str(Path(__file__).parents[2] / "bench" / "answers.py"))
WANTED = {
    "nothing": dict.fromkeys(BENCH["FAULTS"], "same"),
    "--shared": dict.fromkeys(BENCH["FAULTS"], "same") | {"missing plugin": None, "foreign owner": None},
    "--job": dict.fromkeys(BENCH["FAULTS"], "refused") | {"none": "same", "another revision": "same"},
    "--policy": dict.fromkeys(BENCH["FAULTS"], "same")
    | {"cut-off answer": "refused", "foreign owner": "refused", "missing plugin": "refused"},
}
"""None = it depends on which node is first."""


@pytest.fixture(scope="module")
def plugin(tmp_path_factory):
    if compiler() is None:
        pytest.skip("no C compiler here: the plugin cannot be built")
    return BENCH["build"](tmp_path_factory.mktemp("plugin") / "libnccl-tuner-ncclt.so")


@pytest.mark.parametrize("mode", BENCH["MODES"])
def test_a_fault_on_one_node_divides_no_job(plugin, mode):
    with BENCH["serving"]() as url:
        found = {fault: BENCH["run_start"](url, plugin, fault=fault, mode=mode) for fault in BENCH["FAULTS"]}
    assert not [what for outcome, what in found.values() if outcome == "different"]
    for fault, wanted in WANTED[mode].items():
        outcome, what = found[fault]
        assert wanted in (None, outcome), (fault, what)
    assert found["none"][1] == ("nothing" if mode == "nothing" else "r-1")
