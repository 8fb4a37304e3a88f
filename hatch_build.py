"""Builds the NCCL tuner plugin into the wheel, where there is a C compiler; without one the wheel works without it."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class PluginBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Compiles plugin/ and gives the wheel the tag of this platform; any Python 3 can use it."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the shared object to a wheel; an editable install is left to `make plugin`."""
        if self.target_name != "wheel" or version == "editable":
            return
        root = Path(self.root)
        sys.path.insert(0, str(root / "tuner"))
        try:
            from ncclt.errors import NccltError
            from ncclt.nccl.tuner_plugin import LIBRARY_NAME
            from ncclt.nccl.tuner_plugin.build import build
        finally:
            sys.path.remove(str(root / "tuner"))
        try:
            library = build(root / "build" / "plugin" / LIBRARY_NAME, folder=root / "plugin")
        except NccltError as error:
            self.app.display_warning(f"the wheel comes without the NCCL tuner plugin: {error.message} ({error.hint})")
            return
        build_data["force_include"][str(library)] = f"ncclt/nccl/tuner_plugin/{LIBRARY_NAME}"
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
