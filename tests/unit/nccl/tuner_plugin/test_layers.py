"""The parts of the plugin use each other in one direction, by their includes and by their calls."""

import re
from graphlib import TopologicalSorter

from ncclt.nccl.tuner_plugin.build import source_folder

_DEFINED = re.compile(r"^(?!static )[\w *]*?\b(ncclt_\w+)\([^;{]*\) *\{", re.M)


def find_uses():
    """Return what each part, a header and its source, includes and calls."""
    folder = source_folder()
    texts = {path: re.sub(r"/\*.*?\*/", "", path.read_text(), flags=re.S) for path in folder.glob("*.[ch]")}
    homes = {name: path.stem for path, text in texts.items() for name in _DEFINED.findall(text)}
    uses = {path.stem: set() for path in texts}
    for path, text in texts.items():
        included = {name.removesuffix(".h") for name in re.findall(r'#include "(\S+)"', text)}
        called = {homes[name] for name in re.findall(r"\b(ncclt_\w+)\(", text) if name in homes}
        uses[path.stem] |= (included | called) - {path.stem}
    return uses


def test_parts_are_acyclic():
    uses = find_uses()

    order = list(TopologicalSorter(uses).static_order())

    assert uses["communicator"] >= {"delegate", "live", "process", "report", "warn"}, "calls and includes are found"
    assert order.index("warn") < order.index("live") < order.index("communicator")
