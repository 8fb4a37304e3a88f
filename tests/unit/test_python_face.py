"""What `import ncclt` offers, and the page that shows it."""

import inspect
import re
import subprocess
import sys
import types
from dataclasses import replace
from pathlib import Path

import pytest

import ncclt
from ncclt.cli.tune import tune as command
from ncclt.core.recommendation import Decision, Today

ROOT = Path(__file__).parents[2]

HERE = ncclt.Target(nodes=2, launcher="simulate")

BRIEF = ncclt.Budget(trials=3)


def examples(page):
    """The blocks of Python of a page, ready to run, so that a failure names its place."""
    text = (ROOT / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [compile(block, f"{page}, example {number}", "exec") for number, block in enumerate(blocks, start=1)]


def test_the_page_runs_from_top_to_bottom(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NCCLT_SERVER", "http://127.0.0.1:9")  # the port of `discard`, where nothing answers
    names = {}
    for example in examples("docs/trainer/python.md"):
        exec(example, names)

    said = capsys.readouterr().out
    assert "200.0078125 MiB in 2 messages" in said  # 8 x 25 MiB and 2 x 4 KiB
    assert re.search(r"^(tuned|keep-default|undecided): .* \(demonstration on SIMULATED timings\)$", said, re.MULTILINE)
    assert "0 default " in said
    assert f"{names['result'].study.name} done\n" in said
    assert f"{names['result'].recommendation.id} {names['verdict'].decision} " in said
    assert "starting unchanged: " in said
    assert "there is no workload 'bertt' - did you mean bert" in said


def test_the_example_of_the_readme_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    (example,) = examples("README.md")
    exec(example, {})
    assert "(demonstration on SIMULATED timings)" in capsys.readouterr().out.splitlines()[0]


def test_the_import_loads_nothing_else():
    code = (
        "import sys; before = set(sys.modules); import ncclt; new = set(sys.modules) - before; "
        "print(sorted(new - {'__future__'})); print(ncclt.__version__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == f"['ncclt']\n{ncclt.__version__}\n"


def test_every_name_is_there_and_documented(subtests):
    for name in ncclt.__all__:
        with subtests.test(name=name):
            assert name in dir(ncclt)
            found = getattr(ncclt, name)
            assert name == "__version__" or found.__doc__


def test_without_the_extra_it_says_what_to_install(subtests):
    cases = ["optuna", "numpy", "sqlalchemy"]
    for package in cases:
        with subtests.test(package=package):
            code = (
                f"import sys; sys.modules['{package}'] = None\nimport ncclt\n"
                "try:\n    ncclt.tune('bert', ncclt.Target(nodes=2), ncclt.Budget(trials=3))\n"
                "except ncclt.NccltError as error:\n    print(error.message)\n"
            )
            done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
            assert done.stdout == f"{package} is not installed: pip install 'ncclt[tune]'\n"


def test_other_names_are_no_attributes():
    with pytest.raises(AttributeError, match="module 'ncclt' has no attribute 'tuna'"):
        _ = ncclt.tuna


def test_tune_is_the_function_whatever_was_imported_before():
    code = (
        "import ncclt.pipeline.tune, ncclt.cli.tune, ncclt.cli.python; from ncclt import tune; "
        "print(tune is ncclt.tune, callable(tune))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True True\n"


def test_the_same_call_resumes_and_launches_nothing_again(tmp_path):
    with ncclt.open_store(f"sqlite:///{tmp_path / 'ncclt.db'}") as store:
        first, again = (ncclt.tune("bert", HERE, BRIEF, storage=store) for _ in range(2))
        more = ncclt.tune("bert", HERE, replace(BRIEF, more=1), storage=store)

    assert again.finished
    assert first.recommendation == again.recommendation
    assert first.study.cluster.name == "leonardo"
    assert len(more.trials) > len(again.trials) == len(first.trials)


def test_a_reason_to_stop_saves_and_leaves_no_verdict(tmp_path):
    url = f"sqlite:///{tmp_path / 'ncclt.db'}"
    result = ncclt.tune("bert", HERE, BRIEF, storage=url, interrupted=lambda: "enough")
    assert (result.verdict, result.recommendation, result.stop) == (None, None, "enough")
    assert str(result).splitlines()[:2] == ["no verdict on bert on leonardo (SIMULATED)", "  Reason: enough"]


class FakePandas(types.ModuleType):
    """A module `pandas` whose DataFrame keeps its rows."""

    class DataFrame:
        def __init__(self, rows):
            self.rows = rows


def test_result_in_a_notebook(tmp_path, monkeypatch):
    result = ncclt.tune("bert", HERE, BRIEF, storage=f"sqlite:///{tmp_path / 'ncclt.db'}")
    lines = str(result).splitlines()
    assert len(lines) == 5
    assert lines[0].startswith(f"{result.verdict.decision}: ")
    assert f"ncclt studies show {result.study.id}" in str(result)
    verdict = replace(result.verdict, decision=Decision.TUNED, speedup=1.06, interval=(1.05, 1.07))
    today = Today(variables=(("NCCL_PROTO", "Simple"),), default=verdict)
    compared = replace(result, recommendation=replace(result.recommendation, today=today))
    assert "Today: your settings cost 6.0 % (95 % CI 5.0 to 7.0): unset NCCL_PROTO" in str(compared)
    page = result._repr_html_()
    assert page.startswith(f"<p><b>{lines[0]}</b></p>")
    assert page.count("<tr><td>") == len(result.messages)

    monkeypatch.setitem(sys.modules, "pandas", FakePandas("pandas"))
    assert [row["size_bytes"] for row in result.to_frame().rows] == [
        m.calls.message.size_bytes for m in result.messages
    ]
    assert {row["label"] for row in result.to_frame().rows} == {"SIMULATED"}
    assert "SIMULATED" in page
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ncclt.NccltError, match="pandas is not installed: pip install pandas"):
        result.to_frame()


def test_what_does_not_fit_is_refused_before_a_store_is_made(tmp_path, subtests):
    cases = [({"launcher": "slurm"}, "needs a Slurm allocation"), ({"launcher": "lsf"}, "unknown launcher 'lsf'")]
    for target, said in cases:
        with subtests.test(target=target, said=said):
            with pytest.raises(ncclt.NccltError, match=said):
                ncclt.tune("bert", ncclt.Target(**target), storage=f"sqlite:///{tmp_path / 'ncclt.db'}")
            assert list(tmp_path.iterdir()) == []


def test_the_arguments_are_those_of_the_command():
    """An editor shows what the signatures say."""
    resolved = {"reason", "host_slots"}
    offered = {*inspect.signature(ncclt.Target).parameters, *inspect.signature(ncclt.Budget).parameters} - resolved
    assert offered <= set(inspect.signature(command).parameters)
    assert "options" not in inspect.signature(ncclt.tune).parameters


def test_progress_is_shown_on_request(tmp_path, capsys):
    url = f"sqlite:///{tmp_path / 'ncclt.db'}"
    ncclt.tune("bert", HERE, BRIEF, storage=url)
    assert capsys.readouterr().err == ""
    ncclt.tune("bert", HERE, replace(BRIEF, more=1), storage=url, progress=True)
    assert "ncclt: SIMULATED: timings from NCCL's own cost model of leonardo" in capsys.readouterr().err


def test_one_trace_may_be_given_as_text(tmp_path):
    path = tmp_path / "m.csv"
    path.write_text("collective,size_bytes,calls\nall_reduce,4096,2\n")
    assert ncclt.read_workload(str(path), name="m") == ncclt.read_workload([path], name="m")
