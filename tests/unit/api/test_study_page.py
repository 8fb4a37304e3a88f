"""The page of a study: what its charts are made of, and how it stays up to date."""

import json
import math
import re
from dataclasses import replace

import pytest

from ncclt.core.algorithms import Algorithm, Protocol
from ncclt.core.message import Collective
from ncclt.core.policy import Policy, Rule
from ncclt.core.recommendation import Decision, PolicyVerdict
from ncclt.core.revision import Actor
from ncclt.core.setting import DEFAULT, Setting
from ncclt.core.study import Arm, StudyState
from ncclt.core.verification import Side, StepLaunch
from ncclt.prove.evidence import ArmLaunch, LaunchEvidence
from ncclt.prove.interleave import Proof
from ncclt.prove.proof import judge_arm
from ncclt.prove.verdict import Pairs, judge
from ncclt.testing.fakes import FakeRunner, FakeTrialLog
from ncclt.testing.samples import sample_recommendation
from ncclt_api.pages import study_charts
from ncclt_api.pages.study import TABS, build_log, build_study_view, phase_costs
from ncclt_api.pages.study_charts import AS_GOOD, LEAST_RATIO, MOST_LOOKS, MOST_PAIRS, SizeTimes
from ncclt_api.pages.wording import format_speedup

MIB = 1 << 20
FAST = Setting(algorithm=Algorithm.TREE, protocol=Protocol.LL, channels=4)


@pytest.fixture
def study(samples):
    return samples.study()


def times(study, factor, label="default"):
    found = {}
    for calls in study.workload.messages:
        time = factor * (10.0 + calls.message.size_bytes / 1e5)
        found[calls.message] = (0.9 * time, time, 1.2 * time)
    return SizeTimes(label=label, tone="default", of=found)


def spans_of(chart, row):
    return [(span.start, span.end, span.label, span.gap) for span in chart.spans if chart.rows[span.row] == row]


# What jobs get


def test_a_candidate_says_what_jobs_get_today(empty_store, empty_client, samples):
    study = samples.study(simulated=False, launcher="slurm")
    active = samples.publish(empty_store, study, "active")
    new = empty_store.revisions.publish(samples.revised(replace(active, revision=0), "new"), for_rollout=True)

    def banner():
        page = empty_client.get(f"/studies/{study.id}").text
        (found,) = re.findall(r'<p class="banner" role="note">(.*?)</p>', page[: page.index("use-heading")], re.DOTALL)
        return found

    assert banner() == "<strong>Not active.</strong> Jobs get revision 1."
    rollout = empty_store.revisions.approve(new.id, Actor(who="olga"), percent=50)
    assert "50 % of the jobs that start get it; the others get revision 1." in banner()
    assert f'href="/roll-outs/{rollout}"' in banner()
    empty_store.revisions.pause_rollout(rollout, Actor(who="olga"))
    assert "It is paused: all jobs that start get revision 1." in banner()
    samples.make_stale(empty_store, active.id)
    assert "No job that starts gets it: the active revision is stale; <code>ncclt recheck</code>" in banner()
    job = {"model": active.model, "nodes": 2, "gpus_per_node": 4, "nccl_version": "2.22.3", "job": "one"}
    assert empty_client.get(f"/v1/clusters/{active.cluster}/env", params=job).status_code == 410
    empty_store.revisions.activate(new.id, Actor(who="olga"))
    assert 'role="note"' not in empty_client.get(f"/studies/{study.id}").text


# What wins at which size


def test_rules_and_gaps_are_drawn_where_the_policy_has_them(study):
    policy = Policy(
        rules=(
            Rule(collective=Collective.ALL_REDUCE, max_bytes=65536, algorithm=Algorithm.TREE, protocol=Protocol.LL),
            Rule(collective=Collective.ALL_REDUCE, min_bytes=2 * MIB, algorithm=Algorithm.RING),
        )
    )
    chart = study_charts.wins_chart(study, policy, times(study, 1.0), {})
    drawn = spans_of(chart, "all_reduce: policy")
    assert [span[2:] for span in drawn] == [("tree/ll", False), ("default", True), ("ring/auto", False)]
    assert [span[1] for span in drawn[:-1]] == [65537, 2 * MIB]
    assert (drawn[0][0], drawn[-1][1]) == (chart.x.low, chart.x.high)


def test_a_rule_for_another_group_is_not_drawn(study):
    rule = Rule(collective=Collective.ALL_REDUCE, group_size=3, algorithm=Algorithm.RING)
    chart = study_charts.wins_chart(study, Policy(rules=(rule,)), times(study, 1.0), {})
    assert [span[2] for span in spans_of(chart, "all_reduce: policy")] == ["default"]


def test_the_fastest_choice_has_to_be_faster_than_the_default(study):
    barely = study_charts.wins_chart(study, None, times(study, 1.0), {FAST: times(study, 1 / (AS_GOOD - 0.002))})
    clearly = study_charts.wins_chart(study, None, times(study, 1.0), {FAST: times(study, 0.9)})
    assert {span[2] for span in spans_of(barely, "all_reduce: fastest")} == {"default"}
    assert {span[2] for span in spans_of(clearly, "all_reduce: fastest")} == {"tree/ll c=4"}
    assert not any(row.endswith("policy") for row in clearly.rows)


# Time and bandwidth


def test_curves_have_bands_and_units(study):
    ((time, bandwidth),) = study_charts.size_curves(study, [times(study, 1.0), times(study, 0.8, "policy")]).values()
    assert (time.x.unit, time.x.log, time.y.unit, bandwidth.y.unit) == ("bytes", 2, "us", "gbps")
    for line in (*time.lines, *bandwidth.lines):
        assert list(line.x) == sorted(set(line.x))
        assert all(low < middle < high for low, middle, high in zip(line.low, line.y, line.high, strict=True))
    assert len(time.table.rows) == len(time.lines[0].x) == 5


def test_a_size_that_one_choice_lacks_is_a_gap(study):
    partly = times(study, 0.8, "policy")
    missing = next(message for message in partly.of if message.collective is Collective.ALL_REDUCE)
    partly = replace(partly, of={message: times_us for message, times_us in partly.of.items() if message != missing})
    ((time, _),) = study_charts.size_curves(study, [times(study, 1.0), partly]).values()
    assert time.lines[1].y.count(None) == 1
    assert time.to_json()


# Savings


# Search and proof


def launches(pairs, arm=Arm.TABLE):
    found = []
    for number, (default, other) in enumerate(pairs):
        found += [
            ArmLaunch(arm=Arm.DEFAULT, block=number, order=2 * number, time_us=default),
            ArmLaunch(arm=arm, block=number, order=2 * number + 1, time_us=other),
        ]
    return LaunchEvidence(launches=tuple(found))


def blocks_in(pairs):
    return launches(pairs).whole_blocks(Arm.TABLE)


def test_the_proof_is_drawn_behind_the_search(study, samples):
    trials = [replace(samples.trial(0, DEFAULT, study), score_us=100.0)]
    proof = launches([(100.0, 80.0), (400.0, 80.0)]).launches
    lines = {line.label: line for line in study_charts.search_chart(trials, 100.0, proof).lines}
    assert lines["policy, A/B test"].y == [1.25, 1.25]
    assert lines["default, A/B test"].y == [1.0, LEAST_RATIO]


def test_pairs_and_the_interval_by_block():
    wobble = [1.0, 1.01, 0.99, 1.02] * 6
    pairs, interval = study_charts.proof_charts(
        blocks_in([(100.0 * one, 80.0 * one) for one in wobble]), min_effect=0.02
    )
    default, policy, stems = pairs.lines
    assert len(default.x) == len(policy.x) == len(wobble)
    assert (stems.low, stems.high) == (policy.y, default.y)
    assert "faster in 24 of 24 pairs" in pairs.description
    (line,) = interval.lines
    assert list(line.x) == list(range(1, 13))
    widths = [high - low for low, high in zip(line.low, line.high, strict=True)]
    assert widths[-1] < widths[0]
    assert line.low[-1] < 1.25 < line.high[-1]
    assert [level.at for level in interval.levels] == [1.0, 1.02]


def test_a_long_proof_is_bounded_and_half_a_block_is_none():
    pairs, interval = study_charts.proof_charts(blocks_in([(100.0, 99.0)] * 600), min_effect=0.02)
    assert len(pairs.table.rows) == MOST_PAIRS
    assert len(interval.lines[0].x) <= MOST_LOOKS
    assert interval.lines[0].x[-1] == 300
    assert study_charts.proof_charts(blocks_in([(100.0, 80.0)]), min_effect=0.02) is None


def test_step_times_are_drawn_in_order_with_the_interval_of_the_verdict_alone(samples, study):
    times_us = [100.0, 80.0, 81.0, 101.0] * 5
    sides = [Side.BASE, Side.TUNED, Side.TUNED, Side.BASE] * 5
    launches = tuple(
        StepLaunch(side=side, order=order, step_us=(time_us,))
        for order, (side, time_us) in enumerate(zip(sides, times_us, strict=True))
    )
    verdict = judge(Pairs(default_us=(100.0, 101.0) * 5, policy_us=(80.0, 81.0) * 5))
    verified = replace(samples.verification(samples.recommendation(study)), launches=launches, verdict=verdict)
    steps, interval = study_charts.verification_charts(verified)
    assert [list(line.y) for line in steps.lines] == [[100.0, 101.0] * 5, [80.0, 81.0] * 5]
    (line,) = interval.lines
    widths = [high - low for low, high in zip(line.low, line.high, strict=True)]
    assert len(widths) == 5
    assert widths[-1] < widths[0]
    live = replace(verified, verdict=replace(verdict, interval=(1.1, 1.4)))
    assert study_charts.verification_charts(live) == (steps,)
    estimates = {1: (1.2, 0.9, math.inf), 19: (1.25, 1.1, 1.4)}
    stored = tuple(replace(launch, estimate=estimates.get(launch.order)) for launch in launches)
    _steps, interval = study_charts.verification_charts(replace(live, launches=stored))
    assert (interval.lines[0].x, interval.lines[0].y) == ([2, 20], [1.2, 1.25])
    assert interval.table.rows[-1] == ("20", "1.250×", "1.100–1.400")


# Cost


def test_costs_by_phase_add_up(study, samples):
    trials = samples.search_trials(study)
    search, every = phase_costs(study, trials)
    assert (search["phase"], search["launches"], search["failed"]) == ("search", 24, 2)
    assert every["gpu_hours"] == pytest.approx(sum(t.result.wall_s for t in trials) * 8 / 3600)


# The log


def test_the_log_has_the_decisions_in_order(study, samples):
    trials = samples.search_trials(study)
    events = [entry.event for entry in build_log(study, trials, None, {DEFAULT: 100.0, samples.TREE: 80.0})]
    measured = ["NCCL default measured", "2 trials failed", "Best single setting found"]
    assert events == ["Study started", *measured, "Search ended"]
    found = samples.recommendation(study)
    entries = {entry.event: entry.detail for entry in build_log(study, trials, found, {})}
    assert entries["Tuner table: demonstration"] == found.table.verdict.reason
    assert entries["Revision 1 published"] == "keeping the NCCL default"


# The page


def test_each_chart_has_its_table_and_every_id_of_a_tab_is_unique(client):
    figures = set()
    for tab in TABS:
        page = client.get(f"/studies/5e1f00aa?tab={tab}").text
        assert page.count('aria-current="page"') == 2  # in the breadcrumb, and among the tabs
        ids = re.findall(r'<figure class="card chart" id="([^"]+)"', page)
        figures |= set(ids)
        every = re.findall(r'\bid="([^"]+)"', page)
        assert len(every) == len(set(every))
        assert page.count('<details class="as-table">') >= len(ids)
        for place, data in re.findall(
            r'<div class="plot[^>]*>(.*?)</div>\s*<script[^>]*>(.*?)</script>', page, re.DOTALL
        ):
            chart = json.loads(data)
            assert chart["x"]
            assert ("height=" in place) is bool(chart["rows"]), "a chart of rows moves what is below it"
    assert {"wins-chart", "search-chart", "pairs-chart", "interval-chart", "time-chart-0"} <= figures


def test_the_select_offers_the_formats_that_carry_the_result_and_shows_one(empty_store, empty_client, samples):
    study = samples.study(simulated=False, launcher="slurm")
    found = samples.publish(empty_store, study, plain=False)
    for path in (f"/studies/{study.id}", f"/recommendations/{found.id}"):
        page = empty_client.get(path).text
        offered = re.search(r'<select name="use">(.*?)</select>', page, re.DOTALL)[1]
        assert re.findall(r'value="([^"]*)"', offered) == ["", "json", "tuner-csv", "nvidia-csv", "rccl-csv", "ncclx"]
        shown = empty_client.get(path, params={"use": "tuner-csv"}).text
        assert "--format tuner-csv &gt; table.csv" in re.sub("</?span>", "", shown)
        assert '<option value="tuner-csv" selected>' in shown
        assert "Output of tuner-csv" in shown
    assert 'name="use"' not in empty_client.get("/studies/5e1f00aa?tab=search").text


def test_only_result_and_search_of_a_running_study_are_read_again(client, empty_store, empty_client, samples):
    study = samples.study(state=StudyState.RUNNING)
    samples.open_study(empty_store, study, [samples.trial(0, DEFAULT, study)])
    for tab in TABS:
        assert "every 5s" not in client.get(f"/studies/5e1f00aa?tab={tab}").text
        again = f'hx-get="/studies/{study.id}?tab={tab}" hx-select="#live" hx-trigger="every 5s"'
        page = empty_client.get(f"/studies/{study.id}?tab={tab}").text
        assert (again in page) == (tab in ("result", "search"))


# The head and the charts


def test_head_and_charts_show_the_arm_that_was_proven(study):
    """Variables alone were proven, and not to be enough: the charts are of them too, not of the best setting."""
    trial_log = FakeTrialLog()
    runner = FakeRunner(study.cluster, lambda setting, *_: 10.0 if setting.is_default else 9.9)
    policy = Policy(rules=(Rule(collective=Collective.ALL_REDUCE, algorithm=Algorithm.RING),))
    arms = {Arm.DEFAULT: Policy(), Arm.VARIABLES: policy}
    hooks = {"interrupted": lambda: False, "watch": lambda *_: None}
    Proof(runner=runner, workload=study.workload, trial_log=trial_log, policies=arms, blocks=3, **hooks).run()
    trials = trial_log.trials()
    verdict = judge_arm(Arm.VARIABLES, policy, trials, study.workload, min_effect=0.02)
    assert verdict.decision is not Decision.TUNED
    form = PolicyVerdict(policy=policy, verdict=verdict)
    found = replace(sample_recommendation("r"), study=study.id, table=form, variables=form)
    view = build_study_view(study, trials, found, measured=lambda some: some, server="")
    assert view["compared"] == "policy"
    assert view["proof"][1].table.rows[-1][1] == format_speedup(verdict.speedup)
