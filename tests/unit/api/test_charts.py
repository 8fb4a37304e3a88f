"""The pictures: well formed, described, escaped, and showing what was measured."""

import math
from dataclasses import replace
from xml.etree import ElementTree

from ncclt.core.recommendation import Decision, PolicyVerdict
from ncclt.core.trial import Outcome
from ncclt.prove.evidence import collect_evidence
from ncclt_api.pages.charts import (
    CHART_MESSAGES,
    SearchPoint,
    history_chart,
    interval_chart,
    interval_reach,
    messages_chart,
)
from ncclt_api.pages.message_rows import policy_rows

SVG = "{http://www.w3.org/2000/svg}"


def of_class(root, name):
    return [element for element in root.iter() if element.get("class") == name]


def points(*scores):
    return [
        SearchPoint(number=i, score_us=score, outcome=Outcome.OK if score else Outcome.CRASHED, label="<b>")
        for i, score in enumerate(scores)
    ]


def test_history_has_a_dot_per_trial_and_a_cross_per_failure():
    root = ElementTree.fromstring(history_chart(points(100.0, None, 90.0, 120.0), 100.0))
    assert len([c for c in of_class(root, "trial") if c.get("r") == "3.2"]) == 3
    assert [t.text for t in root.iter(f"{SVG}title")].count("trial 1: crashed, <b>") == 1
    assert root.get("aria-labelledby") == "history-title history-desc"
    assert "best 90.0 µs" in root.find(f"{SVG}desc").text


def test_the_best_line_only_goes_down():
    root = ElementTree.fromstring(history_chart(points(100.0, 110.0, 90.0, 95.0), 100.0))
    (line,) = [element for element in of_class(root, "best-line") if element.tag == f"{SVG}path"]
    heights = [float(part.split("H")[0]) for part in line.get("d").split("V")[1:]]
    assert heights == sorted(heights)


def test_history_says_ms_and_logarithmic_where_it_is():
    assert "time, ms (logarithmic)" in history_chart(points(4_000.0, 90_000.0), None)
    assert "time, µs<" in history_chart(points(100.0, 101.0), None)


def test_without_a_measurement_there_is_no_picture():
    assert history_chart(points(None, None), None) is None
    assert history_chart([], None) is None
    assert messages_chart([], policy_name="policy") is None


def proven(samples):
    """The policy of the samples, proven."""
    return PolicyVerdict(policy=samples.POLICY, verdict=samples.verdict(Decision.TUNED))


def test_messages_are_drawn_with_their_gain(samples):
    study = samples.study()
    evidence = collect_evidence(samples.verify_trials(study, first=0))
    rows = policy_rows(study, evidence, proven(samples))
    root = ElementTree.fromstring(messages_chart(rows, policy_name="policy"))
    values = [element.text for element in of_class(root, "value")]
    assert values == [f"{row.speedup:.2f}×" for row in rows]
    assert len(of_class(root, "loss")) == sum(1 for row in rows if row.policy_us > row.default_us)


def test_messages_that_were_not_measured_under_both_are_left_out(samples):
    study = samples.study()
    rows = policy_rows(study, collect_evidence(samples.verify_trials(study, first=0)), proven(samples))
    half = [replace(row, policy_us=None) for row in rows]
    assert messages_chart(half, policy_name="policy") is None
    many = [rows[0]] * 50
    root = ElementTree.fromstring(messages_chart(many, policy_name="policy"))
    assert len(of_class(root, "value")) == CHART_MESSAGES


def test_an_interval_is_coloured_by_what_it_excludes():
    assert 'class="interval gain"' in interval_chart(1.08, (1.06, 1.1), id="a")
    assert 'class="interval loss"' in interval_chart(0.9, (0.85, 0.95), id="a")
    assert 'class="interval open"' in interval_chart(1.0, (0.98, 1.03), id="a")
    assert interval_chart(1.0, (0.0, math.inf), id="a") is None


def test_one_axis_holds_all_intervals():
    reach = interval_reach([(1.0, 1.5), (0.9, 1.1), (0.0, math.inf)])
    assert 0.5 < reach < 0.6
    assert interval_reach([]) > 0.05
