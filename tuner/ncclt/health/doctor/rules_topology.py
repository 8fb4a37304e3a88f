"""Rules about the paths between the GPUs of a node, and how NCCL uses them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ncclt.core.plural import count_noun
from ncclt.health.doctor.facts import Facts
from ncclt.health.doctor.finding import Observation, Severity, observe, rule
from ncclt.health.doctor.gpu_report import gpu_model
from ncclt.health.doctor.matrix import NEAR_NIC, Link, Path, TopologyMatrix
from ncclt.nccl.log.evidence import Evidence
from ncclt.nccl.log.facts import Connection, PrintedLink

_FALLBACK_BW_GBPS = 0.1
"""Bandwidth that NCCL's search writes after giving up (graph/search.cc of 2.12 and later)."""

_RING = 4
"""NCCL_TOPO_PATTERN_RING (graph.h)."""

_NVLS_COMPUTE_CAPABILITY = 90
_FULL_MESH_CAPABILITY = 80


def _find_staged(facts: Facts, paths: tuple[Path, ...]) -> list[tuple[str, Link, Connection]]:
    """Return connections through shared memory between GPUs that are joined by one of some paths."""
    staged = []
    for connection in facts.connections if facts.matrices else ():
        first, second = (_find_gpu(facts, word) for _, word in (connection.source, connection.target))
        if connection.kind != "SHM" or first is None or second is None:
            continue
        link = facts.matrices[0].link(first, second)
        if link is not None and link.path in paths:
            staged.append((f"GPU{first}-GPU{second}", link, connection))
    return staged


def _find_gpu(facts: Facts, word: str) -> int | None:
    """Return nvidia-smi's number of the device in a connection's brackets: an index, before 2.18 a bus address."""
    for start in facts.log.starts:
        if word and start.bus_id == word:
            return start.device if start.nvml_device is None else start.nvml_device
    return int(word) if word.isdigit() and len(word) <= 3 else None


@rule("TOP003")
def _shared_memory_beside_nvlink(facts: Facts) -> Iterator[Observation]:
    if staged := _find_staged(facts, (Path.NVLINK,)):
        pair, link, connection = staged[0]
        pairs = len({name for name, _, _ in staged})
        further = f" and {pairs - 1} more pairs" if pairs > 1 else ""
        problem = f"{pair}{further} talk through host memory although the matrix says {link.word}"
        cell = Evidence(source=facts.matrices[0].source, text=f"{pair}: {link.word}")
        yield observe(problem, connection.evidence, cell, fix=_advise_p2p(facts))
        return
    for start in facts.log.starts:
        shared = next((connection for connection in start.connections if connection.kind == "SHM"), None)
        nvlink = next((graph for graph in start.graphs if graph.type_intra == "NVL"), None)
        if shared and nvlink:
            problem = "ranks talk through host memory although NCCL's own search found NVLink between them"
            yield observe(problem, shared.evidence, nvlink.evidence, fix=_advise_p2p(facts))
            return


def _advise_p2p(facts: Facts) -> str:
    for name in ("NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL"):
        variable = facts.value(name)
        if variable and variable.value not in ("0", "", "SYS", "NVL"):
            return f"unset {name}={variable.value} ({variable.evidence.source})"
    return ""


@rule("TOP004")
def _no_peer_to_peer(facts: Facts) -> Iterator[Observation]:
    if lines := facts.log.p2p_problems:
        problem = f"NCCL could not let GPUs reach each other directly ({count_noun(len(lines), 'line')})"
        yield observe(problem, *lines, fix=_advise_p2p(facts))
    elif staged := _find_staged(facts, (Path.PIX, Path.PXB)):
        pair, link, connection = staged[0]
        problem = f"{pair} talk through host memory although they share PCIe switches ({link.word})"
        yield observe(problem, connection.evidence, fix=_advise_p2p(facts))


@rule("TOP001")
def _gave_up(facts: Facts) -> Iterator[Observation]:
    fallbacks = (
        graph.evidence
        for _, graph in facts.graphs()
        if 0 < graph.bw_inter <= _FALLBACK_BW_GBPS and graph.type_inter == "SYS"
    )
    if lines := (*facts.log.fallbacks, *fallbacks):
        yield observe("NCCL's search found no path through the node and took ranks in plain order", *lines)


@rule("TOP002")
def _unreadable(facts: Facts) -> Iterator[Observation]:
    if lines := facts.log.unreadable:
        properties = count_noun(len(lines), "property", "properties")
        yield observe(f"NCCL could not read {properties} of the PCIe tree", *lines)


@rule("TOP005")
def _one_channel(facts: Facts) -> Iterator[Observation]:
    for start in facts.log.starts:
        if start.channels.get("coll") == 1 and (start.ranks or 2) > 1 and start.channels_line:
            limits = [facts.value(name) for name in ("NCCL_MAX_NCHANNELS", "NCCL_MAX_CTAS", "NCCL_MAX_NRINGS")]
            limit = next((variable for variable in limits if variable and variable.value.strip() == "1"), None)
            problem = f"{start.name} of {start.ranks or '?'} moves everything over one channel"
            fix = f"unset {limit.name}=1 ({limit.evidence.source})" if limit else ""
            yield observe(problem, start.channels_line, fix=fix)
            return


@rule("TOP006")
def _unequal_channels(facts: Facts) -> Iterator[Observation]:
    by_communicator: dict[tuple[str, int | None], dict[int, Evidence]] = {}
    for start, graph in facts.graphs(between_nodes=True):
        # Of the patterns only the ring is searched exactly once, and every collective uses it.
        if graph.pattern == _RING and graph.channels:
            counts = by_communicator.setdefault((start.comm_id, start.ranks), {})
            counts.setdefault(graph.channels, graph.evidence)
    for counts in by_communicator.values():
        if len(counts) > 1:
            numbers = " and ".join(str(count) for count in sorted(counts))
            problem = f"nodes found {numbers} channels for the same ring, and all get the smallest number"
            yield observe(problem, *counts.values())


@rule("TOP007")
def _far_nics(facts: Facts) -> Iterator[Observation]:
    for matrix in facts.matrices:
        links = {gpu: matrix.nic_links(gpu) for gpu in matrix.gpus if matrix.nics}
        far = {gpu: of_gpu for gpu, of_gpu in links.items() if of_gpu[0][1].path is Path.SYS}
        if far:
            names = ", ".join(f"GPU{gpu}" for gpu in far)
            subject = "every GPU reaches" if len(far) == len(links) else f"{names} reach{'es' * (len(far) == 1)}"
            lines = (
                Evidence(
                    source=matrix.source,
                    text=f"GPU{gpu}: {', '.join(f'{nic} {link.word}' for nic, link in of_gpu)}",
                )
                for gpu, of_gpu in far.items()
            )
            yield observe(f"{subject} every NIC across NUMA nodes (SYS)", *lines)


@rule("TOP008")
def _missing_lanes(facts: Facts) -> Iterator[Observation]:
    for matrix in facts.matrices:
        best: dict[int, int] = {}
        for first, second, link in matrix.gpu_pairs():
            if link.path is Path.NVLINK:
                best |= {gpu: max(best.get(gpu, 0), link.lanes) for gpu in (first, second)}
        if len(best) < 3:
            continue
        usual = Counter(best[gpu] for gpu in matrix.gpus if gpu in best).most_common(1)[0][0]
        for gpu, lanes in sorted(best.items()):
            if lanes < usual:
                line = Evidence(source=matrix.source, text=f"GPU{gpu}: at most NV{lanes} to any GPU")
                yield observe(f"GPU{gpu} has NV{lanes} where the other GPUs have NV{usual}: NVLinks are down", line)


@rule("TOP009")
def _no_multicast(facts: Facts) -> Iterator[Observation]:
    lines = [line for available, line in facts.log.multicast if not available]
    switch = facts.value("NCCL_NVLS_ENABLE")
    if not lines or (switch and switch.value.strip() == "0"):
        return
    models = [(name, model) for name in facts.gpu_models if (model := gpu_model(name))]
    capable = [name for name, m in models if m.compute_capability >= _NVLS_COMPUTE_CAPABILITY and m.nvlinks]
    if capable and any(_is_switched(matrix, capable[0]) for matrix in facts.matrices):
        yield observe(f"NVLink SHARP is not available on {capable[0]} with NVSwitch", *lines)


def _is_switched(matrix: TopologyMatrix, gpu: str) -> bool:
    """Return True if all lanes of each GPU reach every other GPU, which takes a switch."""
    model = gpu_model(gpu)
    links = [link for _, _, link in matrix.gpu_pairs()]
    return bool(model and len(matrix.gpus) > 2 and links and all(link.lanes == model.nvlinks for link in links))


@rule("TOP010")
def _host_memory(facts: Facts) -> Iterator[Observation]:
    shared = [connection for connection in facts.connections if connection.kind == "SHM"]
    if not shared or _shared_memory_beside_nvlink.findings(facts) or _no_peer_to_peer.findings(facts):
        return
    channels = len({number for connection in shared for number in connection.channels})
    problem = f"GPUs of one node talk through host memory ({channels} channel{'s' * (channels != 1)} via SHM)"
    comparison, normal_fix = _compare_with_hardware(facts)
    if comparison:
        severity = Severity.INFO if normal_fix else None
        yield observe(f"{problem}{comparison}", shared[0].evidence, fix=normal_fix, severity=severity)


def _compare_with_hardware(facts: Facts) -> tuple[str, str]:
    """Compare transport through host memory with the GPUs' hardware: is it normal there, and what to do?

    Empty = some GPUs reach each other directly, so that the others do not share a PCIe switch or an NVLink.
    """
    models = [(name, model) for name in facts.gpu_models if (model := gpu_model(name))]
    direct = any(kind.startswith("P2P") for kind in facts.log.transports())
    for name, model in models:
        # Before A100 boards with NVLinks form a mesh in which some pairs have none.
        if not model.is_bridged(name) and not (direct and model.compute_capability < _FULL_MESH_CAPABILITY):
            return f" although every {name} has NVLink", ""
    if models and not any(model.peer_to_peer for _, model in models):
        fix = "nothing: no setting gives them peer-to-peer"
        return f", which is normal for {models[0][0]}: it has no peer-to-peer", fix
    paths = {graph.type_intra for _, graph in facts.graphs() if graph.pattern == _RING}
    credible = (matrix for matrix in facts.matrices if not _is_contradictory(matrix))
    paths |= {link.word for matrix in credible for _, _, link in matrix.gpu_pairs()}
    if far := ", ".join(sorted(paths & {"PHB", "NODE", "SYS"})):
        fix = "nothing; where `nvidia-smi topo -p2p r` says OK, measure NCCL_P2P_LEVEL=SYS too"
        return f", which is the NCCL default for GPUs without a common PCIe switch ({far})", fix
    if paths & {"PIX", "PXB"}:
        return " although they share PCIe switches", ""
    if direct:
        return "", ""
    if models:
        return f"; {models[0][0]} can reach its peers directly where they share a PCIe switch", ""
    return "; the log does not name the GPUs, so give `nvidia-smi -q -x` and `nvidia-smi topo -m` too", ""


_SLOWEST_GBPS, _FASTEST_GBPS = 1.0, 2000.0
"""One lane of PCIe 3, as NCCL counts, on which no GPU or fast NIC sits; twice the NVLinks of the newest GPU."""

_LEFT_SHARE = 0.25
"""A GPU's link with this share of another GPU's, or less, is wrong: slots differ by a generation or half the lanes."""


@rule("TOP011")
def _impossible_link(facts: Facts) -> Iterator[Observation]:
    links = [link for link in (*facts.log.links, *_list_dumped_links(facts)) if link.kind in ("PCI", "NVL")]
    wrong: dict[str, list[Evidence]] = {}
    for link in links:
        peers = [peer for peer in links if peer.kind == link.kind and peer.device != link.device]
        best_gpu = max((peer.gbps for peer in peers if peer.end == link.end == "GPU"), default=0.0)
        if not _SLOWEST_GBPS <= link.gbps <= _FASTEST_GBPS or link.gbps <= _LEFT_SHARE * best_gpu:
            name = {"PCI": "the PCIe link", "NVL": "the NVLink"}[link.kind]
            compared = f" (others {max(peer.gbps for peer in peers):g})" if peers else ""
            problem = f"{name} to {link.device} is taken for {link.gbps:g} GB/s{compared}"
            wrong.setdefault(problem, []).append(link.evidence)
    for problem, lines in wrong.items():
        yield observe(problem, *lines)
    for topology in facts.topologies:
        guessed = [link for link in topology.pci_links() if not link.generation or not link.width]
        if guessed:
            names = ", ".join(link.bus_id for link in guessed)
            shown = (Evidence(source=topology.source, text=f"{link.bus_id}: {link}") for link in guessed)
            yield observe(f"Linux shows no PCIe speed or width of {names}: NCCL guesses", *shown)


def _list_dumped_links(facts: Facts) -> Iterator[PrintedLink]:
    """Yield the links of dumped topologies as NCCL would print them."""
    for topology in facts.topologies:
        gpus = {gpu.link for gpu in topology.gpus}
        for link in topology.pci_links():
            if link.generation and link.width:
                line = Evidence(source=topology.source, text=f"{link.bus_id}: {link}")
                end = "GPU" if link in gpus else "PCI"
                yield PrintedLink(kind="PCI", gbps=link.gbps, end=end, device=link.bus_id, evidence=line)


@rule("TOP012")
def _hidden_tree(facts: Facts) -> Iterator[Observation]:
    if facts.value("NCCL_TOPO_FILE") or any("NCCL_TOPO_FILE" in p.set_inside for p in facts.log.processes):
        return
    virtual = facts.virtual_machine
    for matrix in facts.matrices:
        words = {link.word for _, _, link in matrix.gpu_pairs()}
        if _is_contradictory(matrix):
            problem = f"the matrix puts all {len(matrix.gpus)} GPUs on different NUMA nodes (SYS), more than there are"
            yield observe(
                f"{problem}: the PCIe tree is hidden", _show_affinity(matrix), *([virtual] if virtual else [])
            )
        elif virtual and len(matrix.gpus) > 1:
            if not matrix.has_nvlink and words <= {"PHB", "SYS", "NODE"}:
                shown = ", ".join(sorted(words))
                yield observe(f"a virtual machine shows no PCIe switch between its GPUs ({shown})", virtual)
            elif matrix.nics and not any(
                link.path <= NEAR_NIC for gpu in matrix.gpus for _, link in matrix.nic_links(gpu)
            ):
                line = Evidence(source=matrix.source, text="no GPU reaches a NIC by PIX or PXB")
                yield observe("a virtual machine shows no NIC near a GPU", virtual, line)


def _show_affinity(matrix: TopologyMatrix) -> Evidence:
    return Evidence(source=matrix.source, text=f"NUMA affinity {', '.join(matrix.numa_affinity) or 'not told'}")


def _is_all_across(matrix: TopologyMatrix) -> bool:
    return {link.path for _, _, link in matrix.gpu_pairs()} == {Path.SYS}


_MOST_SOCKETS = 2
"""CPU sockets of a usual node, each one NUMA node or more; the matrix names the NUMA nodes where there are more."""


def _is_contradictory(matrix: TopologyMatrix) -> bool:
    """Return True if all pairs are across NUMA nodes although there cannot be that many."""
    nodes = [node for node in matrix.numa_affinity if node and node != "N/A"]
    too_many = len(set(nodes)) < len(nodes) if len(nodes) == len(matrix.gpus) else len(matrix.gpus) > _MOST_SOCKETS
    return too_many and _is_all_across(matrix)


@rule("TOP013")
def _all_across(facts: Facts) -> Iterator[Observation]:
    for matrix in facts.matrices:
        if _is_all_across(matrix) and not _is_contradictory(matrix):
            problem = f"all {len(matrix.gpus)} GPUs reach each other across NUMA nodes"
            yield observe(problem, _show_affinity(matrix))
