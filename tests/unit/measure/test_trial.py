"""One launch: what is measured first."""

from dataclasses import replace

from ncclt.core.algorithms import Algorithm
from ncclt.core.setting import DEFAULT, Setting
from ncclt.core.study import Phase
from ncclt.core.trial import Outcome
from ncclt.measure.trial import claim_launch, launch, measure_claim
from ncclt.testing.fakes import FakeRunner, FakeTrialLog

TREE = Setting(algorithm=Algorithm.TREE)


class Noting(FakeRunner):
    """Notes in which order messages were asked for."""

    def __init__(self, cluster, time_of):
        super().__init__(cluster, time_of)
        self.orders = []

    def measure(self, setting, messages, *, repeat):
        self.orders.append(list(messages))
        return super().measure(setting, messages, repeat=repeat)


def test_bytes_decide_until_the_default_tells_what_the_time_goes_to(cluster, workload):
    """Many small messages can take longer than one large one; a default that failed tells nothing."""
    large, small = (calls.message for calls in workload.messages)
    times = {small: 200.0, large: 1000.0}
    answers = iter([Outcome.TIMEOUT] + [None] * 99)
    runner = Noting(cluster, lambda _setting, message, _number: next(answers) or times[message])
    trial_log = FakeTrialLog()

    for setting in (DEFAULT, TREE, DEFAULT, TREE):
        launch(runner, workload, trial_log, setting, phase=Phase.SEARCH)
    times[small] = 1.0  # a later default changes nothing: the order is that of the study
    for setting in (DEFAULT, TREE):
        launch(runner, workload, trial_log, setting, phase=Phase.SEARCH)
    claim = claim_launch(trial_log, TREE, phase=Phase.CONFIRM)
    measure_claim(runner, workload, trial_log, claim, messages=[large])

    assert runner.orders == [[large, small]] * 3 + [[small, large]] * 3 + [[large]]


def test_the_order_does_not_depend_on_that_of_the_workload(cluster, workload):
    orders = []
    for rows in (workload.messages, workload.messages[::-1]):
        runner, trial_log = Noting(cluster, lambda *_: 10.0), FakeTrialLog()
        for setting in (DEFAULT, TREE):
            launch(runner, replace(workload, messages=rows), trial_log, setting, phase=Phase.SEARCH)
        orders.append(runner.orders)

    assert orders[0] == orders[1]
