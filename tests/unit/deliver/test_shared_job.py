"""The flow of `ncclt run --shared`: the process that decides, and those that follow."""

import os
from types import SimpleNamespace

from ncclt.deliver.job_info import JobInfo
from ncclt.deliver.job_plan import JobPlan
from ncclt.deliver.shared_job import agree
from ncclt.errors import NotFoundError


def test_a_decision_is_announced_by_the_processes_that_follow_it_alone(tmp_path, monkeypatch):
    def find_nothing():
        raise NotFoundError("nothing fits")

    def run():
        told = []
        arguments = SimpleNamespace(dry_run=False, fallback="none", wait=0)
        plan = agree(
            arguments,
            tmp_path,
            JobInfo(name="named j"),
            question="bert on leonardo",
            ask=find_nothing,
            plan=lambda answer, form: JobPlan(answer=answer, form=form),
            tell=told.append,
        )
        assert plan.is_common
        return told

    assert run() == ["ncclt: nothing fits"]
    assert run() == []
    here, pid = os.uname().nodename, os.getpid()
    # In containers, the first process of each node has the same number.
    for host, number in ((here, pid + 1), ("another node", pid)):
        monkeypatch.setattr(os, "uname", lambda host=host: SimpleNamespace(nodename=host))
        monkeypatch.setattr(os, "getpid", lambda number=number: number)
        (line,) = run()
        assert line.startswith(f"ncclt: following the decision of {here} at ")
