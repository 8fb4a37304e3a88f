"""What every runner must do: subclass `RunnerContract` and return a runner.

class TestMyRunner(RunnerContract):
    def runner(self) -> Runner:
        return MyRunner(...)
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ncclt.core.cluster import Cluster
from ncclt.core.message import Collective, Message
from ncclt.core.setting import DEFAULT, Setting
from ncclt.core.trial import Outcome, Runner


class RunnerContract:
    """The contract of ncclt.core.trial.Runner as tests; override `runner`, and the rest where it does not fit."""

    def runner(self) -> Runner:
        """Return a fresh runner."""
        raise NotImplementedError("a contract test needs a runner")

    def messages(self) -> Sequence[Message]:
        """Return messages that the runner can measure under the default."""
        return tuple(
            Message(collective=Collective.ALL_REDUCE, dtype="float32", size_bytes=size) for size in (4096, 1048576)
        )

    def impossible(self) -> Setting:
        """Return a setting under which the runner's NCCL would not run."""
        return Setting(parameters=(("BUFFSIZE", 5),))

    def test_names_itself(self) -> None:
        """The name is one lower-case word, the cluster a cluster."""
        runner = self.runner()
        assert runner.name
        assert runner.name == runner.name.lower()
        assert " " not in runner.name
        assert isinstance(runner.simulated, bool)
        assert isinstance(runner.cluster, Cluster)

    def test_measures_every_message_in_order(self) -> None:
        """An `ok` trial has one measurement per message, in the requested order, with times above 0."""
        messages = self.messages()
        result = self.runner().measure(DEFAULT, messages, repeat=0)
        assert result.outcome is Outcome.OK, result.detail
        assert tuple(m.message for m in result.measurements) == tuple(messages)
        for measurement in result.measurements:
            assert measurement.samples_us
            assert all(math.isfinite(t) and t > 0 for t in measurement.samples_us)
            assert not measurement.wrong
        assert result.wall_s >= 0

    def test_the_order_of_messages_does_not_matter_to_what_is_measured(self) -> None:
        """Reversed messages give reversed measurements of the same messages."""
        messages = tuple(reversed(self.messages()))
        result = self.runner().measure(DEFAULT, messages, repeat=0)
        assert tuple(m.message for m in result.measurements) == messages

    def test_the_same_setting_can_be_measured_again(self) -> None:
        """A second launch is measured again and is as complete as the first."""
        runner, messages = self.runner(), self.messages()
        results = [runner.measure(DEFAULT, messages, repeat=repeat) for repeat in range(3)]
        assert [r.outcome for r in results] == [Outcome.OK] * 3
        assert {len(r.measurements) for r in results} == {len(messages)}

    def test_a_setting_that_cannot_run_is_an_outcome(self) -> None:
        """A failure caused by a setting is never an exception, and the detail says why."""
        result = self.runner().measure(self.impossible(), self.messages(), repeat=0)
        assert result.outcome is not Outcome.OK
        assert result.detail

    def test_no_messages_is_an_empty_success(self) -> None:
        """No messages, no measurements."""
        result = self.runner().measure(DEFAULT, (), repeat=0)
        assert result.outcome is Outcome.OK
        assert result.measurements == ()
