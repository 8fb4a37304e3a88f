"""`ncclt cluster calibrate`: fit the simulated cluster to times of the real one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ncclt.cli.configuration import storage_url
from ncclt.cli.options import REPLACE_CLUSTER, ClusterName, Fields, Storing, spread
from ncclt.cli.output import print_json, print_table, say
from ncclt.core.option import Option
from ncclt.core.plural import count_noun
from ncclt.errors import UsageError, require_extra
from ncclt.measure.target import Target

if TYPE_CHECKING:
    from ncclt.core.calibration import Calibration
    from ncclt.core.cluster import Cluster
    from ncclt.core.setting import Setting
    from ncclt.core.study import Study
    from ncclt.measure.simulated.observations import ObservedTimes
    from ncclt.measure.testbed import Testbed
    from ncclt.store import Store

STUDIES = "studies"
"""Value of --from: the measured studies of the cluster in the store."""


_OF_PROBES = {
    "nodes": Option("Nodes of the job that probes."),
    "gpus_per_node": Option("GPUs per node of the times; default: all."),
    "launcher": Option("With --probe: launcher, as for `ncclt tune`."),
    "launcher_option": Option("With --probe: option of this launcher; repeatable.", metavar="KEY=VALUE"),
    "hosts": Option("With --probe: comma-separated nodes.", comma=True),
    "nccl_tests": Option("With --probe: path to the folder of nccl-tests."),
}
"""Options of the calibrated job, and of the launches that probe it."""


@spread
def calibrate(
    name: ClusterName,
    sources: Annotated[
        list[str],
        typer.Option(
            "--from",
            metavar="FILE|studies",
            help="Path to nccl-tests output or landscape CSV, or `studies`; repeatable.",
        ),
    ] = [],  # noqa: B006 - typer copies it
    named: Annotated[str, typer.Option("--as", help="Name of the fitted cluster; default: NAME-calibrated.")] = "",
    *,
    target: Annotated[
        Target, Fields("nodes gpus_per_node probe launcher launcher_option hosts nccl_tests", _OF_PROBES)
    ],
    probe: Annotated[bool, typer.Option("--probe", help="Launch about a dozen informative settings.")] = False,
    times: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.csv",
            help="With --probe: path to a table that keeps the times; repeating resumes.",
        ),
    ] = None,
    storing: Annotated[Storing, Fields(own=REPLACE_CLUSTER)],
) -> None:
    """Fit the simulator to measured times of a cluster.

    Times of one setting calibrate times, not the ranking of settings; --probe, or studies and tables of several
    settings, calibrate both. `ncclt cluster show` lists the fitted constants with their intervals. Sizes
    and node counts beyond twice the fitted ones are marked as extrapolated.
    """
    storage = storage_url()
    require_extra("tune")
    from ncclt.core.name import check_name
    from ncclt.measure.simulated.calibrate import calibrate as fit
    from ncclt.measure.simulated.calibrate import require_possible
    from ncclt.store import open_store, open_to_read

    if not sources and not probe:
        raise UsageError("there are no times to calibrate with", hint="give --from FILE, --from studies, or --probe")
    if not probe and (target.launcher or target.launcher_option or target.hosts or target.nccl_tests or times):
        raise UsageError(
            "--launcher, --launcher-option, --hosts, --nccl-tests and --times belong to --probe",
            hint="add --probe, or leave them out",
        )
    new = named or f"{name}-calibrated"
    check_name(new, "--as", kind="cluster")
    with open_to_read(storage) as store:
        described = replace(store.clusters.get(name), calibration=None)
        cluster = described.sized(nodes=target.nodes, gpus_per_node=target.gpus_per_node)
        found = [part for source in sources for part in _observed(source, cluster, store)]
        if probe:
            place = replace(target, cluster=cluster.name, nodes=cluster.nodes, gpus_per_node=cluster.gpus_per_node)
            testbed, settings = _probes(cluster, found, place, store)
            if storing.dry_run:
                labels = [setting.label for setting in settings]
                print_json({"schema": 1, "launches": labels}) if storing.as_json else print("\n".join(labels))
                say(f"ncclt: {testbed.reason}: nothing was launched or stored")
                return
            found.append(_probed(testbed, settings, times))
    for note in (note for part in found for note in part.notes):
        say(f"ncclt: {note}")
    seen = [one for part in found for one in part.seen]
    for one in seen:
        require_possible(cluster, one)
    calibration = fit(cluster, seen, sources=[text for part in found for text in part.sources])
    whole = described.sized(gpus_per_node=target.gpus_per_node)
    result = replace(whole, name=new, calibration=calibration)
    if not storing.dry_run:
        with open_store(storage) as store:
            store.clusters.add(result, replace=storing.replace)
            said = f"ncclt: added {result.name} to {store.shown}"
    if storing.as_json or storing.dry_run:
        print_json({"schema": 1, **result.to_document()})
    else:
        print_calibration(calibration)
    if not storing.dry_run:
        say(said)


def print_calibration(calibration: Calibration) -> None:
    """Print the fitted constants and their range of validity."""
    from ncclt.core.message import format_bytes

    print(calibration.sentence)
    sizes = f"{format_bytes(calibration.least_bytes)} to {format_bytes(calibration.most_bytes)}"
    counts = sorted({calibration.least_nodes, calibration.most_nodes})
    print(
        f"fitted to {sizes} on {' to '.join(map(str, counts))} node{'s' * (counts[-1] > 1)}; what is simulated beyond"
    )
    print("twice that is marked as extrapolated")
    if calibration.ll128 is not None:
        print(
            f"The NCCL default {'uses' if calibration.ll128 else 'does not use'} LL128 there, unlike the model's rule"
        )
    if calibration.channels != 1.0:
        print(f"The NCCL default has {calibration.channels:g} times the channels of its model")
    if calibration.tree_bytes is not None:
        above = f" above {format_bytes(calibration.tree_bytes)}" if calibration.tree_bytes else ""
        print(f"The NCCL default never uses tree{above} there, unlike the model")
    header = ("constant", "factor", "from", "to")
    rows = [(c.name, f"{c.factor:.3g}", f"{c.low:.3g}", f"{c.high:.3g}") for c in calibration.constants]
    print_table(header, rows, numbers=header[1:], caption="against the usual constants, with 95 % intervals")
    for source in calibration.sources:
        print(f"from {source}")


def _observed(source: str, cluster: Cluster, store: Store) -> list[ObservedTimes]:
    """Return the times of one --from.

    Raises:
        UsageError: no study was measured there.
    """
    from ncclt.measure.simulated.observations import observed_in_table, observed_in_tests, observed_in_trials
    from ncclt.profile.readers.nccl_tests import read_tests
    from ncclt.profile.source import list_files

    if source != STUDIES:
        return [
            observed_in_table(path, cluster)
            if path.suffix.lower() == ".csv"
            else observed_in_tests(read_tests(path), path, cluster)
            for path, _is_named in list_files([Path(source)])
        ]
    studies = []
    others: dict[str, int] = {}
    cursor: str | None = None
    while True:
        page = store.studies.page(limit=500, cursor=cursor, cluster=cluster.name)
        for study in (summary.study for summary in page.items):
            if other := _unlike(study, cluster):
                others[other] = others.get(other, 0) + 1
            else:
                source = study.label or f"study {study.name}"
                studies.append(observed_in_trials(store.trials.find(study.id), study.cluster.nodes, source))
        cursor = page.next_cursor
        if cursor is None:
            break
    left_out = tuple(
        f"{count} {'study is' if count == 1 else 'studies are'} left out: {why}" for why, count in others.items()
    )
    if not any(part.seen for part in studies):
        raise UsageError(
            f"no study of {cluster.name} in the store was measured on nodes like these"
            + (f" ({'; '.join(left_out)})" if left_out else ""),
            hint="tune first, or give --from FILE; simulated studies do not count",
        )
    return [replace(studies[0], notes=(*left_out, *studies[0].notes)), *studies[1:]]


def _unlike(study: Study, cluster: Cluster) -> str:
    """Return the reason to leave a study out of the times of a cluster; empty = it counts."""
    if study.simulated:
        return "simulated"
    if study.cluster.nccl_version != cluster.nccl_version:
        return f"measured with NCCL {study.cluster.nccl_version}, not {cluster.nccl_version}"
    if study.cluster.gpus_per_node != cluster.gpus_per_node:
        return f"measured with {study.cluster.gpus_per_node} GPUs per node, not {cluster.gpus_per_node}"
    return ""


def _probes(
    cluster: Cluster, known: Sequence[ObservedTimes], target: Target, store: Store
) -> tuple[Testbed, tuple[Setting, ...]]:
    """Return the testbed of the probes, and their settings: the default and the most informative forced ones."""
    from ncclt.core.setting import DEFAULT
    from ncclt.core.workload import MessageCalls, Provenance, Workload
    from ncclt.measure.open_testbed import open_testbed
    from ncclt.measure.simulated.probes import probe_candidates, probe_messages, probes

    workload = Workload(
        name="probes",
        messages=tuple(MessageCalls(message=m, calls_per_step=1.0) for m in probe_messages(cluster)),
        provenance=Provenance(source="ncclt cluster calibrate"),
    )
    testbed = open_testbed(target.resolved(os.environ), store.clusters.get, workload, environ=os.environ, seed=0)
    allowed = [setting for setting in probe_candidates(cluster) if testbed.expressible(setting)]
    if testbed.recorded is not None:
        allowed = [setting for setting in testbed.recorded if setting.algorithm and not setting.parameters]
    seen = [one for part in known for one in part.seen]
    return testbed, (DEFAULT, *probes(cluster, seen, allowed))


def _probed(testbed: Testbed, settings: Sequence[Setting], times: Path | None) -> ObservedTimes:
    """Launch what the table does not have yet."""
    from ncclt import __version__
    from ncclt.measure.simulated.probes import ProbeTable, observe

    origin = f"ncclt cluster calibrate --probe; ncclt {__version__}"
    table = ProbeTable(times, testbed.runner, origin=origin) if times else None
    left = sum(setting not in table.known for setting in settings) if table else len(settings)
    say(f"ncclt: {testbed.reason}: {count_noun(left, 'launch', 'launches')}")
    return observe(testbed.runner, settings, table)
