"""The charts: what the browser is given, escaped, with the same figures as a table."""

import json
import math
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from ncclt.core.trial import Outcome
from ncclt_api.pages.charts import Axis, Chart, Line
from ncclt_api.pages.environment import build_environment, render_page
from ncclt_api.pages.study_charts import LEAST_RATIO, MOST_POINTS, search_chart


def of_class(root, name):
    return [element for element in root.iter() if element.get("class") == name]


@pytest.fixture
def trials(samples):
    """Return trials with the given scores."""
    study = samples.study()
    good, bad = (samples.trial(0, samples.TREE, study, outcome=outcome) for outcome in (Outcome.OK, Outcome.CRASHED))

    def made(*scores):
        return [replace(good if score else bad, number=n, score_us=score) for n, score in enumerate(scores)]

    return made


def drawn(chart):
    return json.loads(str(chart.to_json()))


def line(chart, label):
    return next(one for one in drawn(chart)["lines"] if one["label"].startswith(label))


def test_no_tag_can_end_the_data_of_a_chart():
    axis = Axis(label="</script>", unit="count")
    chart = Chart(id="a", title="A", description="", x=axis, y=axis)
    assert not set(str(chart.to_json())) & set("<>&")
    assert drawn(chart)["x"]["label"] == "</script>"


def test_the_search_is_drawn_as_speed_up_over_the_default(trials):
    chart = search_chart(trials(100.0, None, 80.0, 125.0), 100.0)
    assert line(chart, "search")["y"] == [1.0, 1.25, 0.8]
    assert line(chart, "failed")["x"] == [1]
    assert line(chart, "failed")["notes"] == ["crashed: tree/ll128 c=8"]
    assert drawn(chart)["levels"][0]["at"] == 1.0


def test_outliers_are_drawn_at_the_edge_with_their_value(trials):
    chart = search_chart(trials(100.0, 1000.0, 90.0), 100.0)
    edge = line(chart, "below")
    assert (edge["x"], edge["y"]) == ([1], [LEAST_RATIO])
    assert edge["notes"] == ["0.100×: tree/ll128 c=8"]
    assert drawn(chart)["y"]["low"] < LEAST_RATIO


def test_a_long_search_is_thinned_and_keeps_its_extremes(trials):
    scores = [100.0 + i % 7 for i in range(10_000)]
    scores[5000] = 50.0
    chart = search_chart(trials(*scores), 100.0)
    dots = line(chart, "search")
    assert len(dots["x"]) <= MOST_POINTS
    assert 2.0 in dots["y"]
    assert dots["x"] == sorted(set(dots["x"]))
    assert "10000 measured" in chart.description


def test_without_a_measurement_there_is_no_chart(trials):
    assert search_chart(trials(None, None), 100.0) is None
    assert search_chart(trials(100.0), None) is None


def test_what_is_not_a_number_is_a_gap():
    points = [(1, math.inf, "", 1, 2), (2, 1.23456789, "", 1, math.nan)]
    x, y = Axis("size", "bytes", log=2), Axis("", "us")
    chart = Chart(id="a", title="A", description="", x=x, y=y, lines=[Line.through("one", "policy", "line", points)])
    only = line(chart, "one")
    assert only["y"] == [None, 1.2346]
    assert only["high"] == [2, None]


def test_the_picture_of_an_interval_has_its_colour_and_stays_on_its_axis(samples):
    draw = build_environment().get_template("_names.html").module.picture

    def picture(speedup, interval):
        return ElementTree.fromstring(draw(samples.verdict(speedup=speedup, interval=interval)))

    colours = [
        picture(speedup, interval).get("class")
        for speedup, interval in ((1.08, (1.05, 1.11)), (0.95, (0.92, 0.97)), (1.0, (0.95, 1.05)))
    ]
    assert colours == ["interval gain", "interval loss", "interval open"]
    (whisker,) = of_class(picture(2.0, (0.1, 9.0)), "whisker")
    assert 0 < float(whisker.get("x1")) < float(whisker.get("x2")) < 112
    for speedup, interval, dots, arrows in (
        (1.08, (1.05, 1.11), 1, []),
        (1.2, (1.1, 1.4), 1, ["M112"]),
        (2.0, (1.9, 2.1), 0, ["M112"]),
        (0.5, (0.4, 0.95), 0, ["M0"]),
        (1.0, (0.5, 2.0), 1, ["M0", "M112"]),
    ):
        marks = of_class(picture(speedup, interval), "filled")
        paths = [mark.get("d").split()[0] for mark in marks if mark.get("d")]
        assert (len(marks) - len(paths), paths) == (dots, arrows), speedup
    assert not draw(samples.verdict(speedup=1.0, interval=(0.0, math.inf))).strip()


def test_an_unknown_template_value_is_an_error():
    with pytest.raises(Exception, match="undefined"):
        render_page("study.html")


def test_the_best_line_only_rises_and_reaches_the_end(trials):
    best = line(search_chart(trials(100.0, 110.0, 90.0, 95.0), 100.0), "best")
    assert best["x"] == [0, 2, 3]
    assert best["y"] == sorted(best["y"])
