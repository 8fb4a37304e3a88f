"""Interpolated times in the report."""

from dataclasses import replace

from ncclt_api.pages.report import study_report


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
        empty_store.studies.open(study)
        trials = [*samples.search_trials(study, 3), *samples.verify_trials(study, first=3)]
        for trial in trials:
            empty_store.trials.add(study_id, interpolated(trial, size_bytes))
        empty_store.revisions.publish(samples.recommendation(study, f"0c0ffe{study_id}"))
        page = study_report(empty_store, empty_store.studies.get(study_id))
        assert page.count("interpolated between recorded sizes") == 2 * marks
