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


def interpolated(trial, size_bytes):
    """Return a trial in which the times of one size are interpolated, and that of a size beside all others."""
    one = trial.result.measurements[0]
    beside = replace(one, message=replace(one.message, size_bytes=12345), interpolated=True)
    rows = [replace(m, interpolated=m.message.size_bytes == size_bytes) for m in trial.result.measurements]
    return replace(trial, result=replace(trial.result, measurements=(*rows, beside)))


def test_only_messages_of_the_workload_are_marked_as_interpolated(empty_store, samples):
    """The sizes beside them, which the first pair of a proof measures too, are in no row."""
    for study_id, size_bytes, marks in (("aa", 0, 0), ("bb", 1 << 16, 1)):
        study = samples.study(study_id)
        empty_store.open_study(study)
        trials = [*samples.search_trials(study, 3), *samples.verify_trials(study, first=3)]
        for trial in trials:
            empty_store.add_trial(study_id, interpolated(trial, size_bytes))
        empty_store.publish(samples.recommendation(study, f"0c0ffe{study_id}"))
        text = study_report(empty_store, empty_store.study(study_id), "md")
        assert "## Messages" in text
        assert text.count("KiB\\* |") == marks
        assert text.count("This size was not recorded") == marks
        page = study_report(empty_store, empty_store.study(study_id), "html")
        assert page.count("interpolated between recorded sizes") == 2 * marks
