"""Finding and building the plugin, and what the built object needs."""

import re
import shutil
import subprocess

import pytest

from ncclt.errors import MissingDependencyError, NccltError
from ncclt.nccl.tuner_plugin import LIBRARY_NAME, bundled_library, find, user_library
from ncclt.nccl.tuner_plugin.build import build, compiler, source_folder


def test_places_are_tried_in_order(tmp_path):
    environ = {"HOME": str(tmp_path / "home"), "XDG_DATA_HOME": ""}
    nowhere = find(environ)
    user_library(environ).parent.mkdir(parents=True)
    user_library(environ).write_bytes(b"")
    named = tmp_path / "named.so"
    named.write_bytes(b"")

    assert nowhere in (None, bundled_library())
    assert find(environ) == user_library(environ)
    assert (tmp_path / "home" / ".local/share/ncclt/plugin") in user_library(environ).parents
    assert find({**environ, "NCCLT_PLUGIN": str(named)}) == named
    assert find({**environ, "NCCLT_PLUGIN": str(tmp_path / "gone.so")}) is None
    assert user_library({"XDG_DATA_HOME": "/data"}).is_relative_to("/data/ncclt/plugin")


def test_without_a_compiler_it_says_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)

    with pytest.raises(MissingDependencyError) as caught:
        build(tmp_path / "x.so")

    assert "gcc" in caught.value.hint


def test_a_failed_build_keeps_what_was_there_and_leaves_nothing(tmp_path, library):
    folder, target = tmp_path / "source", tmp_path / "out" / LIBRARY_NAME
    shutil.copytree(source_folder(), folder)
    (folder / "broken.c").write_text("int broken(")
    target.parent.mkdir()
    target.write_text("the old one")

    with pytest.raises(NccltError, match="does not compile"):
        build(target, folder=folder)

    assert target.read_text() == "the old one"
    assert list(target.parent.iterdir()) == [target]


@pytest.mark.skipif(shutil.which("nm") is None, reason="no nm here")
def test_the_object_exports_tuners_and_hooks_alone_and_runs_on_old_systems(library):
    """Containers for training have C libraries from 2.27 (Ubuntu 18.04) on; we need nothing but that library."""
    listed = subprocess.run(["nm", "-D", library], check=True, capture_output=True, text=True).stdout
    exported = {line.split()[-1] for line in listed.splitlines() if re.search(r" [TDBRV] ", line)}
    versions = {tuple(map(int, v.split("."))) for v in re.findall(r"@GLIBC_([\d.]+)", listed)}

    tuners = {f"ncclTunerPlugin_v{version}" for version in (2, 3, 4, 5, 6, 7)}
    live = {f"ncclt_live_{name}" for name in ("describe", "arm", "decide", "estimate", "capture")}
    assert exported == tuners | {"ncclt_describe", "ncclt_decide"} | live
    assert "w ncclGetVersion" in listed
    # Weak, and of the oldest version: before 2.34 they are in a library that the plugin does not name.
    assert re.search(r" w dlopen(@GLIBC_2\.(2\.5|17))?$", listed, re.MULTILINE)
    assert re.search(r" w dlsym(@GLIBC_2\.(2\.5|17))?$", listed, re.MULTILINE)
    assert re.search(r" w dladdr(@GLIBC_2\.(2\.5|17))?$", listed, re.MULTILINE)
    assert max(versions) <= (2, 27)


@pytest.mark.skipif(shutil.which("readelf") is None, reason="no readelf here")
def test_the_object_needs_the_c_library_alone(library):
    needed = subprocess.run(["readelf", "-d", library], check=True, capture_output=True, text=True).stdout

    assert re.findall(r"NEEDED.*\[(.*)\]", needed) == ["libc.so.6"]
    assert "NODELETE" in needed, "NCCL unloads a tuner with its last communicator, and the agreement would go with it"
    assert compiler() is not None
