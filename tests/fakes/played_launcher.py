"""A launcher whose command ends as it is told to."""

from ncclt.launch.launcher import LaunchPlan


class PlayedLauncher:
    name = "played"

    def __init__(self, result):
        self.result, self.plans = result, []

    def plan(self, argv, *, variables, timeout_s, files=()):
        plan = LaunchPlan(argv=tuple(argv), set_env=tuple(sorted(variables.items())), timeout_s=timeout_s)
        self.plans.append(plan)
        return plan

    def run(self, plan):
        return self.result

    def kill(self):
        raise AssertionError("no launch is ended")
