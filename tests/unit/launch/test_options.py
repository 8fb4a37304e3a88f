"""Options of launchers: one parser refuses bad, empty and repeated values of all of them."""

import pytest

from ncclt.errors import UsageError
from ncclt.launch import LAUNCHERS, launcher_class
from ncclt.launch.launcher import Launcher, LauncherOption, parse_options


class ThirdParty(Launcher):
    """A launcher that parses nothing itself."""

    name = "third"
    options = (LauncherOption(key="queue", metavar="NAME", help="Queue"),)


def launchers():
    return [*map(launcher_class, LAUNCHERS), ThirdParty]


def test_an_empty_value_is_refused_by_name(subtests):
    keys = [
        (kind, f"{option.key}name" if option.key.endswith(".") else option.key)
        for kind in launchers()
        for option in kind.options
    ]
    assert len(keys) > 10
    for kind, key in keys:
        for value in ("", " "):
            with subtests.test(key=key, value=value), pytest.raises(UsageError, match="its value is empty") as caught:
                parse_options(kind, [f"{key}={value}"])
            assert repr(f"{key}={value}") in caught.value.message


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("slurm", ("container=a", "container=b")),
        ("slurm", ("time-limit=1", "time-limit=2")),
        ("kubernetes", ("node.pool=a", "node.pool=b")),
        ("third", ("queue=a", "queue=a")),
    ],
)
def test_a_value_that_another_one_would_replace_is_refused(name, words):
    kind = next(kind for kind in launchers() if kind.name == name)
    with pytest.raises(UsageError, match=f"{words[0].partition('=')[0]} is given twice"):
        parse_options(kind, words)


def test_repeatable_options_and_different_names_are_kept():
    assert parse_options(launcher_class("ssh"), ["ssh-arg=-i", "ssh-arg=key"]) == {"ssh_arg": ("-i", "key")}
    labels = parse_options(launcher_class("kubernetes"), ["node.b=1", "node.a=2"])
    assert labels == {"node": (("a", "2"), ("b", "1"))}


def test_options_of_slurm_are_read(subtests):
    slurm = launcher_class("slurm")
    for text in ("30", "30:00", "2:00:00", "1-12", "1-12:30", "1-12:30:00", "UNLIMITED"):
        with subtests.test(text=text):
            assert parse_options(slurm, [f"time-limit={text}"]) == {"time_limit": text}
    for word in ("time-limit=abc", "time-limit=2h", "time-limit=-5", "time-limit=1:2:3:4", "sbatch-arg=nodash"):
        with subtests.test(word=word), pytest.raises(UsageError, match="invalid --launcher-option") as caught:
            parse_options(slurm, [word])
        assert repr(word) in caught.value.message
