"""Records as options: what a command line offers for a record, and the record that its command gets."""

import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from ncclt.cli.options import Fields, spread, words_of
from ncclt.core.budget import Budget
from ncclt.core.option import Option
from ncclt.measure.target import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class Meal:
    """A record with a field of each kind, and one that is no option."""

    dish: Annotated[str, Option("What is eaten.", envvar="MEAL_DISH")] = ""
    guests: Annotated[int, Option("Who eats.", flag="--for", least=1, metavar="N")] = 2
    sides: Annotated[tuple[str, ...], Option("Served with it; repeatable.")] = ()
    sauces: Annotated[tuple[str, ...], Option("Comma-separated.", comma=True)] = ("salsa",)
    is_hot: Annotated[bool, Option("Served hot.")] = False
    cooked_by: str = "unknown"


def invoked(command, *words, env=None):
    app = typer.Typer()
    app.command()(command)
    return CliRunner().invoke(app, words, env=env, catch_exceptions=False)


@spread
def order(
    meal: Annotated[Meal, Fields("sides tip dish guests", {"guests": Option("Who pays.")})],
    table: Annotated[int, typer.Option(help="Where.")] = 1,
    tip: Annotated[float, typer.Option(help="How much.")] = 0.1,
) -> None:
    """Order."""
    print(meal, table, tip)


@spread
def cook(meal: Meal) -> None:
    """Cook."""
    print(meal)


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ((), Meal()),
        (("--dish", "soup", "--for", "3", "--is-hot"), Meal(dish="soup", guests=3, is_hot=True)),
        (("--sides", "a,b", "--sides", "c"), Meal(sides=("a,b", "c"))),
        (("--sauces", "a, b,"), Meal(sauces=("a", "b"))),
        (("--sauces", ""), Meal(sauces=())),
    ],
)
def test_a_command_gets_the_record(words, wanted):
    assert invoked(cook, *words).stdout == f"{wanted}\n"


def test_variables_count_where_a_flag_is_left_out():
    assert "dish='pie'" in invoked(cook, env={"MEAL_DISH": "pie"}).stdout


def test_a_number_below_the_least_is_refused():
    refused = invoked(cook, "--for", "0")
    assert refused.exit_code == 2
    assert "--for" in refused.stderr


def test_what_is_no_option_is_not_offered():
    assert invoked(cook, "--cooked-by", "me").exit_code == 2
    assert invoked(cook, "--no-is-hot").exit_code == 2


def test_the_help_has_the_order_and_the_words_of_the_command():
    said = invoked(order, "--help", env={"COLUMNS": "200"}).stdout
    places = [said.index(word) for word in ("--sides", "--tip", "--dish", "--guests", "--table")]
    assert places == sorted(places)
    assert "Who pays." in said
    assert "Who eats." not in said
    assert "--sauces" not in said


def test_parameters_and_fields_stand_beside_each_other():
    done = invoked(order, "--tip", "1", "--guests", "9")
    assert done.stdout == f"{Meal(guests=9)} 1 1.0\n"


@pytest.mark.parametrize(
    "record",
    [
        Meal(),
        Meal(dish="soup", guests=7, sides=("--rice", "salad"), sauces=("a", "b"), is_hot=True),
        Target(launcher="ssh", hosts=("a", "b"), launcher_arg=("--mca", "x y"), persistent=True),
        Target(launcher="replay", landscape=Path("/data/l.csv")),
        Budget(seed=3, blocks=32, process_wide=("none",), seconds=2.5),
    ],
)
def test_a_record_as_words_is_the_same_record_again(record):
    """Also where a value looks like an option."""
    got = []

    def take(record):
        got.append(record)

    take.__signature__ = inspect.Signature(
        [inspect.Parameter("record", inspect.Parameter.KEYWORD_ONLY, annotation=type(record))]
    )
    done = invoked(spread(take), *words_of(record), env={"NCCLT_LAUNCHER": "local"})
    assert done.exit_code == 0, done.output
    assert got == [record]
    assert (words_of(record) == []) is (record == type(record)())
