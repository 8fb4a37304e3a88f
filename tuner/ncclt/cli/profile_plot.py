"""`ncclt profile show --plot FILE`: how many calls and bytes of a step fall into each power of two."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ncclt.core.message import format_bytes
from ncclt.errors import MissingDependencyError, UsageError
from ncclt.profile.views.histogram import histogram

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ncclt.core.workload import Workload

FORMATS = (".svg", ".png")
"""Endings of the files that can be written."""


_MIB = 1 << 20


def check_plot(path: Path) -> None:
    """Raise unless a picture can be written under this name.

    Raises:
        UsageError: the name tells no kind of picture that we write.
        MissingDependencyError: matplotlib is not installed.
    """
    if path.suffix.lower() not in FORMATS:
        raise UsageError(f"--plot cannot write {path}", hint=f"end the name in {' or '.join(FORMATS)}")
    try:
        import matplotlib as _matplotlib
    except ImportError as error:
        raise MissingDependencyError("pictures need matplotlib", hint="pip install 'ncclt[plot]'") from error
    del _matplotlib


def write_plot(workload: Workload, path: Path) -> None:
    """Write the message-size histogram of a workload as SVG or PNG, by the name of the file.

    Raises:
        UsageError: the name tells neither, or the file cannot be written.
        MissingDependencyError: matplotlib is not installed.
    """
    check_plot(path)
    import matplotlib as mpl

    try:
        # Text stays text in an SVG, and no date goes in, so that one workload gives one file.
        with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "ncclt"}):
            metadata = {"Date": None} if path.suffix.lower() == ".svg" else None
            figure(workload).savefig(path, dpi=150, metadata=metadata)
    except OSError as error:
        raise UsageError(
            f"{path} cannot be written: {error.strerror}", hint="choose another file for --plot"
        ) from error


def figure(workload: Workload) -> Figure:
    """Return the histogram: calls above, bytes below, on one axis of sizes."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    bins = histogram(workload)
    exponents = [one.exponent for one in bins]
    # Without pyplot: no window system is looked for, and nothing outlives the figure.
    drawn = Figure(figsize=(9, 5), layout="constrained")
    above, below = drawn.subplots(2, 1, sharex=True)
    # A name is shown as it is: matplotlib would read a formula between two dollars.
    held = "a whole file" if workload.provenance.whole_file else "one training step"
    drawn.suptitle(f"{workload.name}: messages of {held} by size", parse_math=False)
    above.bar(exponents, [one.calls for one in bins], color="#4477aa")
    above.set_ylabel(f"calls per {workload.unit}")
    below.bar(exponents, [one.bytes_per_step / _MIB for one in bins], color="#228833")
    below.set_ylabel(f"MiB per {workload.unit}")
    below.set_xlabel("message size (powers of two)")
    below.xaxis.set_major_locator(MaxNLocator(nbins=10, integer=True))
    below.xaxis.set_major_formatter(FuncFormatter(lambda value, _position: format_bytes(2 ** max(0, round(value)))))
    for axes in (above, below):
        axes.grid(axis="y", color="#dddddd")
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    return drawn
