"""The reader of NCCL's libraries and wheels, on a small library of the same make."""

import importlib.util
import json
import subprocess
import sys
import zipfile
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from ncclt.nccl.tuner_plugin.build import compiler

TUNER = Path(__file__).parents[2] / "tuner"
SOURCE = """
#include <stddef.h>
typedef enum { ncclSuccess, ncclInternalError } ncclResult_t;
typedef struct { double baseLatencies[7][3]; } ncclTunerConstants_v6_t;
typedef struct {
  const char *name;
  ncclResult_t (*init)(void **context, size_t ranks, ncclTunerConstants_v6_t *constants);
  ncclResult_t (*finalize)(void *context);
} ncclTuner_v6_t;

ncclTuner_v6_t *tuner;
static long cache[3];
const char *getenv_(const char *name);
void say(const char *text);
void *find(const char *symbol);

__attribute__((noinline)) void ncclLoadParam(const char *name, long otherwise, long unset, long *value) {
  if (getenv_(name)) *value = otherwise + unset;
}
#define PARAM(name, variable, otherwise, place) \\
  long ncclParam##name(void) __asm__("_Z9ncclParam" #name "v"); \\
  __attribute__((noinline)) long ncclParam##name(void) { \\
    if (cache[place] == 1) ncclLoadParam("NCCL_" variable, otherwise, 1, &cache[place]); \\
    return cache[place]; \\
  }
PARAM(Used, "USED", 65536, 0)
PARAM(Small, "SMALL", -2, 1)
PARAM(Forgotten, "FORGOTTEN", 0, 2)

const char *ncclAlgoStr[2] = {"Tree", "Ring"}, *ncclProtoStr[1] = {"LL"}, *ncclFuncStr[1] = {"Broadcast"};

__attribute__((visibility("default"))) ncclResult_t ncclGetVersion(int *version) {
  if (!version) return ncclInternalError;
  *version = 29901;
  return ncclSuccess;
}
__attribute__((visibility("default"))) long start(void) {
  say("set NCCL_ONLY_IN_A_MESSAGE");
  say("%ld Bytes -> Algo %d proto %d time %f");
  if (getenv_("NCCL_READ_BY_HAND")) tuner = find("ncclTunerPlugin_v6");
  return ncclParamUsed() + ncclParamSmall();
}
"""


@pytest.fixture(scope="module")
def scripts():
    """Load tuner/read_nccl.py as it is run: with its folder to import from."""
    pytest.importorskip("elftools")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(TUNER))
        spec = importlib.util.spec_from_file_location("read_nccl", TUNER / "read_nccl.py")
        module = importlib.util.module_from_spec(spec)
        patch.setitem(sys.modules, "read_nccl", module)
        spec.loader.exec_module(module)
        yield module


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    if compiler() is None:
        pytest.skip("no C compiler here")
    folder = tmp_path_factory.mktemp("nccl")
    (folder / "nccl.c").write_text(SOURCE)
    flags = ["-O1", "-gdwarf-4", "-fPIC", "-shared", "-fvisibility=hidden", "-fcf-protection=none"]
    subprocess.run([compiler(), *flags, "-o", folder / "libnccl.so.2", folder / "nccl.c"], check=True)
    return folder / "libnccl.so.2"


@pytest.fixture(scope="module")
def library(scripts, built):
    with built.open("rb") as file:
        return scripts.read_library(file)


def test_variables_are_what_code_takes_the_address_of_and_not_what_messages_mention(library):
    used = {name for name, is_read in library.variables.items() if is_read}
    assert (used, library.variables.keys() - used) == (
        {"NCCL_USED", "NCCL_SMALL", "NCCL_READ_BY_HAND"},
        {"NCCL_FORGOTTEN"},
    )


def test_version_symbols_names_and_messages_are_read_from_the_code(library):
    assert library.version == 29901
    assert library.plugins == {"ncclTunerPlugin_v6"}
    assert library.names == {"functions": ("Broadcast",), "algorithms": ("Tree", "Ring"), "protocols": ("LL",)}
    assert library.messages == {"%ld Bytes -> Algo %d proto %d time %f"}


def test_layouts_are_written_with_offsets_and_types(library):
    assert library.structs == {
        "ncclTuner_v6_t": (
            "0 const char* name",
            "8 ncclResult_t init(void**, size_t, ncclTunerConstants_v6_t*)",
            "16 ncclResult_t finalize(void*)",
            "24 end",
        ),
        "ncclTunerConstants_v6_t": ("0 double baseLatencies[7][3]", "168 end"),
    }
    assert library.enums == {"ncclResult_t": ("0 ncclSuccess", "1 ncclInternalError")}


def test_what_is_no_library_of_nccl_is_refused(scripts, built, tmp_path):
    stripped = tmp_path / "stripped.so"
    subprocess.run([compiler(), "-s", "-shared", "-o", stripped, "-x", "c", "/dev/null"], check=True)
    with stripped.open("rb") as file, pytest.raises(ValueError, match="with symbols"):
        scripts.read_library(file)


def wheel(scripts, library, version, **changes):
    return scripts.Wheel(name=f"nccl-{version}", sha256="", library=replace(library, version=version, **changes))


def test_a_fact_has_the_releases_that_know_it_with_gaps(scripts, library):
    with_it, without = {"NCCL_X": True}, {}
    wheels = [
        wheel(scripts, library, version, variables=variables)
        for version, variables in ((22000, with_it), (22100, with_it), (22200, without), (22300, with_it))
    ]
    assert scripts.document(wheels)["variables"] == {"NCCL_X": "2.20.0..2.21.0, 2.23.0.."}
    assert scripts.document(wheels[:3])["variables"] == {"NCCL_X": "2.20.0..2.21.0"}
    assert scripts.document(wheels[1:3])["variables"] == {"NCCL_X": "2.21.0"}


def test_a_fact_that_changes_is_listed_with_each_of_its_forms(scripts, library):
    wheels = [
        wheel(scripts, library, 22000, enums={"ncclFunc_t": ("0 ncclFuncBroadcast",)}),
        wheel(scripts, library, 22100, enums={}),
        wheel(scripts, library, 22200, enums={"ncclFunc_t": ("0 other",)}),
    ]
    document = scripts.document(reversed(wheels))
    assert document["enums"]["ncclFunc_t"] == [
        {"versions": "2.20.0", "is": ["0 ncclFuncBroadcast"]},
        {"versions": "2.22.0..", "is": ["0 other"]},
    ]


def test_a_variable_that_one_build_of_a_release_asks_for_is_asked_for(scripts, library):
    one = wheel(scripts, library, 22000, variables={"NCCL_X": True, "NCCL_Y": False})
    other = wheel(scripts, library, 22000, variables={"NCCL_X": False, "NCCL_Y": False})
    assert scripts.document([one, other])["variables_never_asked_for"] == {"NCCL_Y": "2.20.0.."}


def test_two_builds_of_a_release_that_differ_are_not_mixed(scripts, library):
    one, other = wheel(scripts, library, 22000), wheel(scripts, library, 22000, plugins=frozenset())
    with pytest.raises(ValueError, match="know different things"):
        scripts.document([one, other])


@pytest.fixture
def shelf(built, tmp_path, monkeypatch):
    """Let pip find one wheel in a folder and nowhere else."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    with zipfile.ZipFile(folder / "nvidia_nccl_cu12-2.99.1-py3-none-any.whl", "w") as archive:
        archive.write(built, "nvidia/nccl/lib/libnccl.so.2")
        information = "nvidia_nccl_cu12-2.99.1.dist-info"
        archive.writestr(f"{information}/METADATA", "Metadata-Version: 2.1\nName: nvidia-nccl-cu12\nVersion: 2.99.1\n")
        archive.writestr(f"{information}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{information}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return folder


def test_every_release_is_downloaded_read_and_written_and_check_tells_a_difference(
    scripts, shelf, tmp_path, monkeypatch, capfd
):
    written = tmp_path / "reference" / "nccl-versions.json"
    monkeypatch.setattr(scripts, "DOCUMENT", written)
    monkeypatch.setattr(scripts, "PROJECTS", scripts.PROJECTS[:1])  # each takes pip some seconds, so it is asked once
    for function in ("releases", "fetch"):
        monkeypatch.setattr(scripts, function, cache(getattr(scripts, function)))
    assert scripts.main([]) == 0
    document = json.loads(written.read_text())
    assert list(document["wheels"]["2.99.1"]) == [path.name for path in sorted(shelf.iterdir())]
    assert document["variables"]["NCCL_USED"] == "2.99.1.."

    assert scripts.main(["--check"]) == 0
    written.write_text(written.read_text().replace("NCCL_USED", "NCCL_USE"))
    assert scripts.main(["--check"]) == 1
    assert "run tuner/read_nccl.py" in capfd.readouterr().err
