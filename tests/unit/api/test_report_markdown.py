"""The report in Markdown says what the page of the study says."""

from dataclasses import replace

from ncclt_api.pages.report import study_report
from ncclt_api.pages.wording import format_speedup, format_time

ID = "5e1f00aa"


def test_the_times_of_the_proof_agree_with_its_speed_up(empty_store, samples):
    """Medians alone do not: the speed-up is that of pairs of launches, and the messages add up to it."""
    samples.fill(empty_store)
    published = next(one for one in empty_store.recommendations() if one.study == ID)
    verdict = replace(published.table.verdict, policy_us=2 * published.table.verdict.policy_us)
    empty_store.publish(replace(published, id="0c0ffee9", table=replace(published.table, verdict=verdict)))
    text = study_report(empty_store, empty_store.study(ID), "md")
    row = next(line for line in text.splitlines() if line.startswith("| tuner table"))
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[2] == format_speedup(verdict.speedup)
    assert cells[-2:] == [format_time(verdict.default_us), format_time(verdict.default_us / verdict.speedup)]
