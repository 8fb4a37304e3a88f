"""The flow of `ncclt run --shared`: the process that decides, and those that follow."""

import os
from types import SimpleNamespace

from ncclt.deliver.answer import Answer
from ncclt.deliver.job_info import JobInfo
from ncclt.deliver.job_plan import JobPlan
from ncclt.deliver.shared_job import agree


def test_a_decision_is_announced_by_the_processes_that_follow_it_alone(tmp_path, monkeypatch):
    def run():
        told = []
        arguments = SimpleNamespace(dry_run=False, fallback="none", wait=0)
        plan = agree(
            arguments,
            tmp_path,
            JobInfo(name="named j"),
            question="bert on leonardo",
            ask=lambda: Answer(recommendation="r-1"),
            plan=lambda answer, form: JobPlan(answer=answer, form=form),
            tell=told.append,
        )
        assert plan.is_common
        return told

    assert run() == []
    assert run() == []
    monkeypatch.setattr(os, "getpid", lambda pid=os.getpid(): pid + 1)
    (line,) = run()
    assert line.startswith(f"ncclt: following the decision of {os.uname().nodename} at ")
