"""`ncclt run`: what fails beside the training does not stop it."""

import argparse
import errno
from pathlib import Path

import pytest

from ncclt.cli import run_prepare
from ncclt.core.recommendation import Request
from ncclt.deliver import offer
from ncclt.errors import InputError

REQUEST = Request(cluster="leonardo", model="bert")
OPTIONS = {"with_table": True, "timeout_s": 1.0, "from_cache": False, "warn": print}
GOLDEN = Path(__file__).parents[2] / "golden" / "env"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EACCES])
def test_a_full_disk_costs_the_reports_and_not_the_training(tmp_path, monkeypatch, capsys, number):
    def refused(**_options):
        raise OSError(number, "no")

    monkeypatch.setattr("tempfile.mkdtemp", refused)
    assert run_prepare._report_folder(argparse.Namespace(report=tmp_path, fallback="cached")) is None
    assert "no reports are kept" in capsys.readouterr().err
    with pytest.raises(InputError, match="nothing can be written"):
        run_prepare._report_folder(argparse.Namespace(report=tmp_path, fallback="fail"))


def test_a_revision_published_between_two_answers_is_asked_for_again(monkeypatch):
    """Else this node would do without while the others have what was published."""
    env, table = (GOLDEN / "tuned.json").read_text(), (GOLDEN / "tuned.tuner-csv").read_text()
    answers = [env.replace("r-1f3c", "r-old"), table, env]
    asked = []

    def fetching(*_words, **_options):
        def fetch(format):
            asked.append(format)
            return answers[len(asked) - 1]

        return fetch

    monkeypatch.setattr(offer, "_fetching", fetching)
    found = offer.ask_for_offer(REQUEST, "http://tuner", None, **OPTIONS)

    assert (found.recommendation, found.table) == ("r-1f3c", table)
    assert asked == ["json", "tuner-csv", "json"]
    asked.clear()
    answers[2] = answers[0]
    with pytest.raises(InputError, match="one revision"):
        offer.ask_for_offer(REQUEST, "http://tuner", None, **OPTIONS)
