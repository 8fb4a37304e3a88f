"""Launches that the model learns from."""

from ncclt.core.setting import DEFAULT
from ncclt.core.study import Phase, Trial
from ncclt.core.trial import Measurement, Outcome, TrialResult
from ncclt.search.observations import collect_launches


def test_a_launch_that_lacks_a_message_is_no_launch_and_one_that_failed_is_a_failure(workload):
    def trial(outcome, messages):
        measured = tuple(Measurement(message=c.message, samples_us=(5.0,)) for c in messages)
        return Trial(
            number=0,
            phase=Phase.SEARCH,
            setting=DEFAULT,
            repeat=0,
            result=TrialResult(outcome=outcome, measurements=measured),
            score_us=None,
        )

    whole, part = workload.messages, workload.messages[:1]
    assert [launch.times_us for launch in collect_launches([trial(Outcome.OK, whole)], workload)] == [
        (5.0,) * len(whole)
    ]
    assert collect_launches([trial(Outcome.OK, part)], workload) == ()
    failed, wrong = collect_launches([trial(Outcome.CRASHED, part), trial(Outcome.WRONG_RESULT, whole)], workload)
    assert (failed.times_us, failed.wrong, wrong.times_us, wrong.wrong) == (None, False, None, True)
