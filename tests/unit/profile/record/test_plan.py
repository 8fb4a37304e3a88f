"""Planning a recording."""

import ast
import json
from pathlib import Path

import pytest

import ncclt.profile.record
from ncclt.errors import UsageError
from ncclt.profile.record.plan import Method, RecordOptions, plan_recording

SOURCES = Path(ncclt.profile.record.__file__).parent
FOLDER = Path("/shared/.ncclt-record-x")
LIBRARY = Path("/opt/ncclt/libnccl-tuner-ncclt.so")


def _plan(argv=("torchrun", "train.py"), **options):
    places = {"folder": FOLDER, "environ": {}}
    places |= {name: options.pop(name) for name in ("folder", "environ", "open_mpi", "library") if name in options}
    return plan_recording(argv, RecordOptions(**{"method": Method.AUTO} | options), **places)


def test_auto_sets_up_both_ways():
    plan = _plan(environ={"PYTHONPATH": "/mine"}, steps=5, warmup=3, stop_after=True)
    variables = dict(plan.set_env)
    assert plan.argv == ("torchrun", "train.py")
    assert variables["PYTHONPATH"] == f"{FOLDER}/inject:/mine"
    assert variables["NCCL_DEBUG_FILE"] == f"{FOLDER}/nccl/%h.%p.log"
    assert variables["NCCL_DEBUG_SUBSYS"] == "INIT,ENV,COLL,TUNING"
    settings = json.loads(dict(plan.files)["inject/recording.json"])
    assert {name: value for name, value in settings.items() if value} == {"steps": 5, "warmup": 3, "stop_after": True}


def test_nccl_reads_a_percent_sign_in_the_name_of_the_folder():
    assert dict(_plan(folder=Path("/50%h")).set_env)["NCCL_DEBUG_FILE"] == "/50%%h/nccl/%h.%p.log"


def test_python_path_has_no_empty_entry():
    """An empty entry is the working folder, which the user did not ask for."""
    assert dict(_plan(environ={"PYTHONPATH": ""}).set_env)["PYTHONPATH"] == f"{FOLDER}/inject"


def test_each_method_alone_sets_nothing_of_the_other():
    torch, log = _plan(method=Method.TORCH), _plan(method=Method.NCCL_LOG)
    assert {name for name, _ in torch.set_env} == {"PYTHONPATH", "KINETO_LOG_LEVEL"}
    assert {name for name, _ in log.set_env} == {"NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE"}
    assert not log.files


def test_users_own_debug_log_is_left_alone_unless_asked_for():
    environ = {"NCCL_DEBUG": "WARN", "KINETO_LOG_LEVEL": "0"}
    auto, log = _plan(environ=environ), _plan(environ=environ, method=Method.NCCL_LOG)
    assert {name for name, _ in auto.set_env} == {"PYTHONPATH"}
    assert "already set and kept" in auto.notes[0]
    assert dict(log.set_env)["NCCL_DEBUG"] == "INFO"
    assert "replaced" in log.notes[0]


def test_what_cannot_work_is_refused():
    for options, said in [
        ({"argv": ()}, "no command"),
        ({"argv": ("", "x")}, "no command"),
        ({"steps": 0}, "--steps"),
        ({"warmup": 0}, "--warmup"),
        ({"folder": Path("/a:b")}, "/a:b"),
        ({"stop_after": True, "method": Method.NCCL_LOG}, "--stop-after"),
        ({"stop_after": True, "method": Method.PLUGIN}, "--stop-after"),
        ({"warmup": 3, "method": Method.PLUGIN}, "--warmup"),
    ]:
        with pytest.raises(UsageError, match=said) as caught:
            _plan(**options)
        assert caught.value.hint


def test_everything_injected_is_copied_stands_alone_and_is_python_3_8():
    copied = dict(_plan().files)
    written = {f"inject/_ncclt_recording/{path.name}" for path in (SOURCES / "injected").glob("*.py")}
    assert {name for name in copied if "_ncclt_recording" in name} == written
    assert copied["inject/sitecustomize.py"] == (SOURCES / "entry.py").read_text()
    imported = set()
    for name in (*written, "inject/sitecustomize.py"):
        for node in ast.walk(ast.parse(copied[name], name, feature_version=(3, 8))):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            imported |= {module.split(".")[0] for module in modules}
    assert "json" in imported
    assert "ncclt" not in imported


def test_a_known_number_of_steps_leaves_the_programs_alone():
    plan = _plan(method=Method.PLUGIN, library=LIBRARY, steps=500)

    assert dict(plan.set_env) == {"NCCL_TUNER_PLUGIN": str(LIBRARY), "NCCLT_PLUGIN_REPORT": f"{FOLDER}/plugin"}
    assert (plan.files, plan.options.steps) == ((), 500)
    assert "only one tuner" in plan.notes[0]


def test_an_unknown_number_of_steps_is_counted_and_nothing_traced():
    plan = _plan(method=Method.PLUGIN, library=LIBRARY, environ={"PYTHONPATH": "/mine"})

    assert dict(plan.set_env)["PYTHONPATH"] == f"{FOLDER}/inject:/mine"
    assert json.loads(dict(plan.files)["inject/recording.json"])["count_only"] is True


def test_open_mpi_is_told_to_hand_the_variables_on():
    plan = _plan(method=Method.PLUGIN, library=LIBRARY, steps=5, open_mpi=True)

    assert plan.argv[1:5] == ("-x", "NCCLT_PLUGIN_REPORT", "-x", "NCCL_TUNER_PLUGIN")
