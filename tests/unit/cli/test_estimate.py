"""First part of `ncclt advise`: where compute and communication times come from, and what is said of them."""

import json
from dataclasses import replace

import pytest

from ncclt.cli.advise import advise
from ncclt.core.message import Collective, Message
from ncclt.core.setting import DEFAULT
from ncclt.core.trial import Measurement, Outcome, TrialResult
from ncclt.core.workload import MessageCalls, Provenance, Workload
from ncclt.errors import UsageError
from ncclt.testing.samples import RING, sample_cluster, sample_study, sample_trial

GRADIENTS = 28 * 10**9


def _workload(**more):
    """One all_reduce of the whole job."""
    message = Message(collective=Collective.ALL_REDUCE, dtype="float32", size_bytes=GRADIENTS)
    origin = Provenance(source="model", detail={"parameters": "7000000000"})
    calls = MessageCalls(message=message, calls_per_step=1.0)
    return Workload(name="seven", messages=(calls,), provenance=origin, **more)


@pytest.fixture
def ready(command):
    """The workload, and two nodes of eight GPUs with 125 GB/s between them."""
    command.store.workloads.add(_workload())
    cluster = replace(sample_cluster("fabric"), gpus_per_node=8, link_class="nvswitch", link_gbps=450, nic_gbps=31.25)
    command.store.clusters.add(cluster)
    return command


def _ask(ready, *words):
    document = json.loads(ready(advise, "--model", "seven", "--cluster", "fabric", "--json", *words))
    return document | document["estimate"]


def _study(ready, *, simulated, time_us, setting=DEFAULT, outcome=Outcome.OK, nodes=2, id="s1"):
    cluster = ready.store.clusters.get("fabric").sized(nodes=nodes)
    study = replace(sample_study(id, id=id), cluster=cluster, simulated=simulated)
    ready.store.studies.open(study)
    message = _workload().placed(nodes=nodes, gpus_per_node=8).messages[0].message
    result = TrialResult(outcome=outcome, measurements=(Measurement(message=message, samples_us=(time_us,)),))
    ready.store.trials.add(id, replace(sample_trial(0), setting=setting, result=result))


@pytest.mark.parametrize(("nic_gbps", "links_s", "bound"), [(31.25, 0.42, "network"), (100, 0.13, "compute")])
def test_the_faster_fabric_of_the_checks_leaves_the_step_to_compute(ready, nic_gbps, links_s, bound):
    """Four ports of 31.25 or 100 GB/s a node: B = 125 and 400 GB/s."""
    ready.store.clusters.add(replace(ready.store.clusters.get("fabric"), nic_gbps=nic_gbps), replace=True)
    document = _ask(ready, "--tflops", "297", "--tokens-per-step", "32768")
    assert (round(document["links_s"], 2), document["bound"]) == (links_s, bound)


def test_small_messages_cost_their_latency(ready):
    """A broadcast of 424 bytes over two nodes is not free, and the text shows its µs."""
    small = Message(collective=Collective.BROADCAST, dtype="int64", size_bytes=424)
    calls = MessageCalls(message=small, calls_per_step=2.0)
    ready.store.workloads.add(replace(_workload(), name="small", messages=(calls,)))
    words = ("--model", "small", "--cluster", "fabric")
    document = json.loads(ready(advise, *words, "--json"))["estimate"]
    assert 5 < document["messages"][0]["time_us"] < 100
    assert document["communication_s"] == pytest.approx(2e-6 * document["messages"][0]["time_us"])
    row = next(line for line in ready(advise, *words).splitlines() if line.startswith("broadcast"))
    assert " 0.0 " not in row


def test_what_is_exposed_is_at_most_what_is_sent(ready):
    """The rest of what no computation hides is waiting for other ranks, which is no communication."""
    (calls,) = _workload().messages
    waiting = _workload(step_time_us=16_000.0, exposed_us=1_580.0)
    ready.store.workloads.add(replace(waiting, name="waiting", messages=(replace(calls, recorded_us=564.0),)))
    document = json.loads(ready(advise, "--model", "waiting", "--cluster", "fabric", "--json"))["estimate"]
    assert document["compute_s"] == pytest.approx((16_000 - 564) / 1e6)


def test_compute_can_be_given_or_stay_unknown(ready):
    assert _ask(ready, "--compute-ms", "500")["bound"] == "compute"
    document = _ask(ready)
    assert (document["compute_s"], document["bound"], document["turning_busbw_gbps"]) == (None, None, None)
    assert "Compute: unknown" in ready(advise, "--model", "seven", "--cluster", "fabric")


def test_a_recording_tells_its_compute(ready):
    ready.store.workloads.add(replace(_workload(step_time_us=9e5, exposed_us=2e5), name="recorded"))
    document = json.loads(ready(advise, "--model", "recorded", "--cluster", "fabric", "--json"))["estimate"]
    assert document["compute_s"] == pytest.approx(0.7)
    assert document["compute_source"].startswith("recorded")


def test_one_node_has_other_links(ready):
    document = _ask(ready, "--nodes", "1")
    assert document["messages"][0]["link_gbps"] == 450
    assert document["links_s"] == pytest.approx(28 / 450 * 2 * 7 / 8, rel=1e-3)


def test_measured_times_of_the_default_replace_the_formula(ready):
    _study(ready, simulated=False, time_us=500_000.0)
    document = _ask(ready)
    assert (document["communication_s"], document["messages"][0]["source"]) == (0.5, "measured")
    assert (document["studies"], document["simulated"]) == (["s1"], False)
    assert document["links_s"] == pytest.approx(0.42, rel=1e-3)


@pytest.mark.parametrize("change", [{"setting": RING}, {"outcome": Outcome.TIMEOUT}, {"nodes": 1}])
def test_other_settings_failures_and_other_jobs_do_not_count(ready, change):
    _study(ready, simulated=False, time_us=500_000.0, **change)
    document = _ask(ready)
    assert (document["studies"], document["messages"][0]["source"]) == ([], "model")


def test_simulated_times_count_only_where_nothing_is_measured_and_say_so(ready):
    _study(ready, simulated=True, time_us=700_000.0, id="sim")
    invented = _ask(ready)
    assert (invented["simulated"], invented["messages"][0]["source"]) == (True, "simulated")
    assert "SIMULATED, not measured" in ready(advise, "--model", "seven", "--cluster", "fabric")
    _study(ready, simulated=False, time_us=500_000.0, id="real")
    document = _ask(ready)
    assert (document["studies"], document["simulated"], document["communication_s"]) == (["real"], False, 0.5)


@pytest.mark.parametrize(
    "words",
    [
        ("--compute-ms", "0"),
        ("--tflops", "396"),
        ("--compute-ms", "5", "--tflops", "396"),
        ("--nodes", "0"),
    ],
)
def test_options_that_make_no_sense(ready, words):
    with pytest.raises(UsageError):
        _ask(ready, *words)
