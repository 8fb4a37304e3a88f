"""Rules about the paths between the GPUs of a node, and how NCCL uses them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ncclt.core.plural import count_noun
from ncclt.health.doctor.facts import Facts
from ncclt.health.doctor.finding import Observation, Severity, rule
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
_DOCS = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html"


def _staged(facts: Facts, paths: tuple[Path, ...]) -> list[tuple[str, Link, Connection]]:
    """Return connections through shared memory between GPUs that are joined by one of some paths."""
    found = []
    for start in facts.log.starts:
        for connection in start.connections:
            if connection.kind != "SHM":
                continue
            pair = [_gpu(facts, word) for _, word in (connection.source, connection.target)]
            first, second = pair
            if not facts.matrices or first is None or second is None:
                continue
            link = facts.matrices[0].link(first, second)
            if link is not None and link.path in paths:
                found.append((f"GPU{pair[0]}-GPU{pair[1]}", link, connection))
    return found


def _gpu(facts: Facts, word: str) -> int | None:
    """Return nvidia-smi's number of the device in a connection's brackets: an index, before 2.18 a bus address."""
    for start in facts.log.starts:
        if word and start.bus_id == word:
            return start.device if start.nvml_device is None else start.nvml_device
    return int(word) if word.isdigit() and len(word) <= 3 else None


@rule("TOP003")
def _shared_memory_beside_nvlink(facts: Facts) -> Iterator[Observation]:
    if staged := _staged(facts, (Path.NVLINK,)):
        pair, link, connection = staged[0]
        others = len({name for name, _, _ in staged}) - 1
        more = f" and {others} more pairs" if others else ""
        yield Observation(
            what=f"{pair}{more} talk through host memory although the matrix says {link.word}",
            evidence=(connection.evidence, Evidence(source=facts.matrices[0].source, text=f"{pair}: {link.word}")),
            fix=_p2p_fix(facts),
        )
        return
    for start in facts.log.starts:
        shared = next((c for c in start.connections if c.kind == "SHM"), None)
        nvlink = next((g for g in start.graphs if g.type_intra == "NVL"), None)
        if shared and nvlink:
            what = "ranks talk through host memory although NCCL's own search found NVLink between them"
            yield Observation(what=what, evidence=(shared.evidence, nvlink.evidence), fix=_p2p_fix(facts))
            return


def _p2p_fix(facts: Facts) -> str:
    for name in ("NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL"):
        variable = facts.value(name)
        if variable and variable.value not in ("0", "", "SYS", "NVL"):
            return f"unset {name}={variable.value} ({variable.evidence.source})"
    return ""


@rule("TOP004")
def _no_peer_to_peer(facts: Facts) -> Iterator[Observation]:
    lines = facts.log.p2p_problems
    if lines:
        what = f"NCCL could not let GPUs reach each other directly ({count_noun(len(lines), 'line')})"
        yield Observation(what=what, evidence=lines, fix=_p2p_fix(facts))
    elif staged := _staged(facts, (Path.PIX, Path.PXB)):
        pair, link, connection = staged[0]
        yield Observation(
            what=f"{pair} talk through host memory although they share PCIe switches ({link.word})",
            evidence=(connection.evidence,),
            fix=_p2p_fix(facts),
        )


@rule("TOP001")
def _gave_up(facts: Facts) -> Iterator[Observation]:
    graphs = [
        graph.evidence
        for start in facts.log.starts
        for graph in start.graphs
        if 0 < graph.bw_inter <= _FALLBACK_BW_GBPS and graph.type_inter == "SYS"
    ]
    lines = (*facts.log.fallbacks, *graphs)
    if lines:
        yield Observation(
            what="NCCL's search found no path through the node and took ranks in plain order", evidence=lines
        )


@rule("TOP002")
def _unreadable(facts: Facts) -> Iterator[Observation]:
    if lines := facts.log.unreadable:
        properties = count_noun(len(lines), "property", "properties")
        yield Observation(what=f"NCCL could not read {properties} of the PCIe tree", evidence=lines)


@rule("TOP005")
def _one_channel(facts: Facts) -> Iterator[Observation]:
    for start in facts.log.starts:
        if start.channels.get("coll") == 1 and (start.ranks or 2) > 1 and start.channels_line:
            limits = [facts.value(n) for n in ("NCCL_MAX_NCHANNELS", "NCCL_MAX_CTAS", "NCCL_MAX_NRINGS")]
            asked = next((v for v in limits if v and v.value.strip() == "1"), None)
            yield Observation(
                what=f"{start.name} of {start.ranks or '?'} moves everything over one channel",
                evidence=(start.channels_line,),
                fix=f"unset {asked.name}=1 ({asked.evidence.source})" if asked else "",
            )
            return


@rule("TOP006")
def _unequal_channels(facts: Facts) -> Iterator[Observation]:
    found: dict[tuple[str, int | None], dict[int, Evidence]] = {}
    for start in facts.log.starts:
        for graph in start.graphs:
            # Of the patterns only the ring is searched exactly once, and every collective uses it.
            if graph.pattern == _RING and graph.channels and (start.nodes or 1) > 1:
                found.setdefault((start.comm_id, start.ranks), {}).setdefault(graph.channels, graph.evidence)
    for counts in found.values():
        if len(counts) > 1:
            numbers = " and ".join(str(count) for count in sorted(counts))
            what = f"nodes found {numbers} channels for the same ring, and all get the smallest number"
            yield Observation(what=what, evidence=tuple(counts.values()))


@rule("TOP007")
def _far_nics(facts: Facts) -> Iterator[Observation]:
    for matrix in facts.matrices:
        far = [gpu for gpu in matrix.gpus if matrix.nics and matrix.nic_links(gpu)[0][1].path is Path.SYS]
        if far:
            names = ", ".join(f"GPU{gpu}" for gpu in far)
            every = "every GPU reaches" if len(far) == len(matrix.gpus) else f"{names} reach{'es' * (len(far) == 1)}"
            lines = tuple(
                Evidence(
                    source=matrix.source,
                    text=f"GPU{gpu}: " + ", ".join(f"{n} {li.word}" for n, li in matrix.nic_links(gpu)),
                )
                for gpu in far
            )
            yield Observation(what=f"{every} every NIC across NUMA nodes (SYS)", evidence=lines)


@rule("TOP008")
def _missing_lanes(facts: Facts) -> Iterator[Observation]:
    for matrix in facts.matrices:
        lanes: dict[int, list[int]] = {gpu: [] for gpu in matrix.gpus}
        for first, second, link in matrix.gpu_pairs():
            if link.path is Path.NVLINK:
                lanes[first].append(link.lanes)
                lanes[second].append(link.lanes)
        best = {gpu: max(found) for gpu, found in lanes.items() if found}
        if len(best) < 3:
            continue
        usual = Counter(best.values()).most_common(1)[0][0]
        for gpu, count in best.items():
            if count < usual:
                yield Observation(
                    what=f"GPU{gpu} has NV{count} where the other GPUs have NV{usual}: NVLinks are down",
                    evidence=(Evidence(source=matrix.source, text=f"GPU{gpu}: at most NV{count} to any GPU"),),
                )


@rule("TOP009")
def _no_multicast(facts: Facts) -> Iterator[Observation]:
    lines = [line for available, line in facts.log.multicast if not available]
    off = facts.value("NCCL_NVLS_ENABLE")
    if not lines or (off and off.value.strip() == "0"):
        return
    known = [(name, model) for name in facts.gpu_models if (model := gpu_model(name))]
    capable = [name for name, m in known if m.compute_capability >= _NVLS_COMPUTE_CAPABILITY and m.nvlinks]
    switched = any(_is_switched(matrix, capable) for matrix in facts.matrices)
    if capable and switched:
        what = f"NVLink SHARP is not available on {capable[0]} with NVSwitch"
        yield Observation(what=what, evidence=tuple(lines))


def _is_switched(matrix: TopologyMatrix, names: list[str]) -> bool:
    """Return True if all lanes of each GPU reach every other GPU, which takes a switch."""
    model = gpu_model(names[0]) if names else None
    links = [link for _, _, link in matrix.gpu_pairs()]
    return bool(model and len(matrix.gpus) > 2 and links and all(link.lanes == model.nvlinks for link in links))


@rule("TOP010")
def _host_memory(facts: Facts) -> Iterator[Observation]:
    shared = [c for start in facts.log.starts for c in start.connections if c.kind == "SHM"]
    if not shared or _shared_memory_beside_nvlink.findings(facts) or _no_peer_to_peer.findings(facts):
        return
    channels = len({number for connection in shared for number in connection.channels})
    what = f"GPUs of one node talk through host memory ({channels} channel{'s' * (channels != 1)} via SHM)"
    expectation, normal_fix = _expected_transport(facts)
    if expectation:
        yield Observation(
            what=f"{what}{expectation}",
            evidence=(shared[0].evidence,),
            fix=normal_fix,
            severity=Severity.INFO if normal_fix else None,
        )


def _expected_transport(facts: Facts) -> tuple[str, str]:
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
    paths = {graph.type_intra for start in facts.log.starts for graph in start.graphs if graph.pattern == _RING}
    shown = [matrix for matrix in facts.matrices if not _is_contradictory(matrix)]
    paths |= {link.word for matrix in shown for _, _, link in matrix.gpu_pairs()}
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
    links = [link for link in (*facts.log.links, *_dumped_links(facts)) if link.kind in ("PCI", "NVL")]
    found: dict[str, list[Evidence]] = {}
    for link in links:
        others = [other for other in links if other.kind == link.kind and other.device != link.device]
        same = max((other.gbps for other in others if other.end == link.end == "GPU"), default=0.0)
        if not _SLOWEST_GBPS <= link.gbps <= _FASTEST_GBPS or link.gbps <= _LEFT_SHARE * same:
            name = {"PCI": "the PCIe link", "NVL": "the NVLink"}[link.kind]
            beside = f" (others {max(other.gbps for other in others):g})" if others else ""
            what = f"{name} to {link.device} is taken for {link.gbps:g} GB/s{beside}"
            found.setdefault(what, []).append(link.evidence)
    for what, lines in found.items():
        yield Observation(what=what, evidence=tuple(lines))
    for topology in facts.topologies:
        guessed = [link for link in topology.pci_links() if not link.generation or not link.width]
        if guessed:
            names = ", ".join(link.bus_id for link in guessed)
            shown = tuple(Evidence(source=topology.source, text=f"{link.bus_id}: {link}") for link in guessed)
            yield Observation(what=f"Linux shows no PCIe speed or width of {names}: NCCL guesses", evidence=shown)


def _dumped_links(facts: Facts) -> Iterator[PrintedLink]:
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
    given = facts.value("NCCL_TOPO_FILE") or any("NCCL_TOPO_FILE" in p.set_inside for p in facts.log.processes)
    if given:
        return
    virtual = facts.virtual_machine
    for matrix in facts.matrices:
        words = {link.word for _, _, link in matrix.gpu_pairs()}
        if _is_contradictory(matrix):
            line = Evidence(source=matrix.source, text=f"NUMA affinity {', '.join(matrix.numa_affinity) or 'not told'}")
            yield Observation(
                what=f"the matrix shows {len(matrix.gpus)} GPUs all across NUMA nodes (SYS), more than there are: the "
                "PCIe tree is hidden",
                evidence=(line, *([virtual] if virtual else [])),
            )
        elif virtual and len(matrix.gpus) > 1 and not matrix.has_nvlink and words <= {"PHB", "SYS", "NODE"}:
            yield Observation(
                what=f"a virtual machine shows no PCIe switch between its GPUs ({', '.join(sorted(words))})",
                evidence=(virtual,),
            )
        elif virtual and matrix.nics and len(matrix.gpus) > 1:
            if any(link.path <= NEAR_NIC for gpu in matrix.gpus for _, link in matrix.nic_links(gpu)):
                continue
            line = Evidence(source=matrix.source, text="no GPU reaches a NIC by PIX or PXB")
            yield Observation(what="a virtual machine shows no NIC near a GPU", evidence=(virtual, line))


def _is_contradictory(matrix: TopologyMatrix) -> bool:
    """Return True if all pairs are across NUMA nodes although there cannot be that many."""
    if {link.path for _, _, link in matrix.gpu_pairs()} != {Path.SYS}:
        return False
    nodes = [node for node in matrix.numa_affinity if node and node != "N/A"]
    known = len(nodes) == len(matrix.gpus)
    return len(set(nodes)) < len(nodes) if known else len(matrix.gpus) > _MOST_SOCKETS


_MOST_SOCKETS = 2
"""CPU sockets of a usual node, each one NUMA node or more; the matrix names the NUMA nodes where there are more."""


@rule("TOP013")
def _all_across(facts: Facts) -> Iterator[Observation]:
    for matrix in facts.matrices:
        if {link.path for _, _, link in matrix.gpu_pairs()} == {Path.SYS} and not _is_contradictory(matrix):
            line = Evidence(source=matrix.source, text=f"NUMA affinity {', '.join(matrix.numa_affinity) or 'not told'}")
            yield Observation(what=f"all {len(matrix.gpus)} GPUs reach each other across NUMA nodes", evidence=(line,))


TOPOLOGY_RULES = (
    _gave_up,
    _unreadable,
    _shared_memory_beside_nvlink,
    _no_peer_to_peer,
    _one_channel,
    _unequal_channels,
    _far_nics,
    _missing_lanes,
    _no_multicast,
    _host_memory,
    _impossible_link,
    _hidden_tree,
    _all_across,
)
"""About the paths between GPUs."""
