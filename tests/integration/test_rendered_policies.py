"""Shipped workloads x NCCL 2.18 to 2.32 x generated policies: nothing illegal leaves, nothing is lost in silence."""

import importlib.util
import itertools
import json
import shlex
from dataclasses import replace
from pathlib import Path

import format_readers as readers
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ncclt.core.algorithms import Algorithm, Protocol, is_legal
from ncclt.core.cluster import Cluster
from ncclt.core.message import Collective
from ncclt.core.nccl_version import NcclVersion
from ncclt.core.policy import Policy, Rule
from ncclt.core.recommendation import Decision, PolicyVerdict, Recommendation, Verdict
from ncclt.core.setting import max_channels
from ncclt.deliver.render.formats import FORMATS, render
from ncclt.errors import NoRecommendationError, SettingError
from ncclt.nccl.compile import rule_label, variables_for_setting
from ncclt.search.space import cluster_space
from ncclt.store.shipped import profiles_folder, shipped_clusters, shipped_workloads

_UNIT = Path(__file__).resolve().parents[1] / "unit"


def unit_helper(path):
    spec = importlib.util.spec_from_file_location(f"{Path(path).stem}_of_rendered", _UNIT / path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


oracle = unit_helper("nccl/nccl_syntax.py")
WORKLOADS = list(shipped_workloads(profiles_folder()).values())
CLUSTERS = [shipped_clusters(profiles_folder())[name] for name in ("leonardo", "dgx-h100")]
VERSIONS = [NcclVersion.parse(f"2.{minor}.3") for minor in range(18, 33)]
WORDS = {
    Collective.ALL_REDUCE: ("allreduce", "AllReduce"),
    Collective.ALL_GATHER: ("allgather", "AllGather"),
    Collective.REDUCE_SCATTER: ("reducescatter", "ReduceScatter"),
    Collective.BROADCAST: ("broadcast", "Broadcast"),
    Collective.REDUCE: ("reduce", "Reduce"),
}
PROVEN = Verdict(
    decision=Decision.TUNED, reason="", speedup=1.1, interval=(1.05, 1.15), blocks=6, default_us=11, policy_us=10
)
PARAMETERS = [(), (("BUFFSIZE", 8388608),), (("NTHREADS", 256),), (("BUFFSIZE", 1048576), ("IB_TC", 3))]


@st.composite
def recommendations(draw):
    """A policy by size or uniform, for some of a shipped workload's collectives, whole job or groups."""
    workload, cluster = draw(st.sampled_from(WORKLOADS)), draw(st.sampled_from(CLUSTERS))
    version = draw(st.sampled_from(VERSIONS))
    place = Cluster.from_document({**cluster.to_document(), "nccl_version": str(version)})
    channels = st.sampled_from([None, 1, 8, max_channels(version)])
    shared, uniform = draw(channels), draw(st.booleans())
    rules = []
    for collective in sorted(c for c in workload.collectives if c.is_tunable and draw(st.booleans())):
        pairs = [
            pair
            for pair in itertools.product([None, *Algorithm], [None, *Protocol])
            if is_legal(collective, *pair, version=version)
        ]
        groups = [0] if uniform else draw(st.sets(st.sampled_from([0, 2, place.world_size]), min_size=1))
        for group in groups:
            bounds = [] if uniform else sorted(draw(st.sets(st.integers(1, 2**34), max_size=4)))
            ends = [0, *bounds, None]
            for low, high in itertools.pairwise(ends):
                if uniform or draw(st.integers(0, 3)):
                    algorithm, protocol = draw(st.sampled_from(pairs))
                    rules.append(
                        Rule(
                            collective=collective,
                            min_bytes=low,
                            max_bytes=None if high is None else high - 1,
                            group_size=group,
                            algorithm=algorithm,
                            protocol=protocol,
                            channels=shared if uniform else draw(channels),
                        )
                    )
    policy_verdict = PolicyVerdict(
        policy=Policy(rules=tuple(rules), parameters=draw(st.sampled_from(PARAMETERS))), verdict=PROVEN
    )
    return Recommendation(
        id="r",
        revision=1,
        study="s",
        cluster=cluster.name,
        model=workload.name,
        workload_digest="d",
        collectives=workload.collectives,
        fingerprint=place.fingerprint(),
        table=policy_verdict,
        variables=policy_verdict,
        simulated=False,
        launcher="local",
        created="2026-01-01",
    )


def variables_of(made):
    """Read every format that delivers variables, and make sure that all say the same."""
    document = json.loads(render(made, format="json"))
    wanted = document["variables"]
    # A TaskProlog that would set nothing is refused.
    of_groups = ("pg-options", "megatron-yaml")
    formats = [one for one in FORMATS if not one.endswith("csv") and one not in of_groups]
    formats = [one for one in formats if wanted or one != "slurm-taskprolog"]
    texts = {format: render(made, format=format) for format in formats}
    traced = {**wanted, "NCCLT_RECOMMENDATION": "r"}
    exported = [shlex.split(line, comments=True)[1] for line in texts["export"].splitlines() if line.startswith("e")]
    assert dict(word.split("=", 1) for word in exported) == traced
    assert readers.read_fish(render(made, format="export", shell="fish")) == traced
    assert readers.read_csh(render(made, format="export", shell="csh")) == traced
    assert readers.read_verbatim(texts["dotenv"]) == traced
    assert readers.read_nccl_conf(texts["nccl-conf"]) == wanted
    assert readers.read_words(texts["mpirun-x"], "-x") == traced
    assert readers.read_words(texts["docker-env"], "--env") == traced
    assert readers.read_configmap(texts["configmap"])[0] == traced
    assert readers.read_env_list(texts["trainjob-env"]) == traced
    assert readers.read_cloudai(texts["cloudai"]) == traced
    for name, value in traced.items():
        assert not wanted or f"'export {name}={value}'" in texts["slurm-taskprolog"]
    return wanted, document["lost"]


@settings(max_examples=60, deadline=None)
@given(recommendations())
def test_variables_are_legal_and_what_they_cannot_say_is_named(made):
    version, policy = made.fingerprint.version, made.variables.policy
    variables, lost = variables_of(made)

    enabled = oracle.enabled(variables, version)
    assert all(enabled.values())
    assert not oracle.forces_ll128(variables, version)
    assert "^" not in "".join(variables.values())
    assert "LL128" not in variables.get("NCCL_PROTO", "").upper()
    assert not {"NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS"} & set(variables)
    for name, value in policy.parameters:
        delivered = variables.get(f"NCCL_{name}") == str(value)
        assert delivered or any(sentence.startswith(f"NCCL_{name}={value}: ") for sentence in lost)
    for rule in policy.rules:
        forced = rule.algorithm or rule.protocol or rule.channels is not None
        left = {(a.lower(), p.lower()) for a, p in enabled[WORDS[rule.collective][1]]}
        delivered = all(
            (rule.algorithm is None or rule.algorithm.replace("_", "") == a)
            and (rule.protocol is None or rule.protocol == p)
            for a, p in left
        ) and (rule.channels is None or variables.get("NCCL_MAX_CTAS") == str(rule.channels))
        assert not forced or delivered or any(sentence.startswith(f"{rule_label(rule)}: ") for sentence in lost)


@pytest.mark.parametrize("cluster", CLUSTERS, ids=[cluster.name for cluster in CLUSTERS])
def test_every_setting_that_is_searched_is_legal_for_every_collective(cluster):
    for workload, version in itertools.product(WORKLOADS, VERSIONS):
        place = replace(cluster, nccl_version=str(version))
        for setting in cluster_space(workload.collectives, place, parameters={}).distinct:
            compiled = variables_for_setting(setting, version=version, collectives=workload.collectives)
            variables = dict(compiled.variables)
            enabled = oracle.enabled(variables, version)
            assert all(enabled[WORDS[collective][1]] for collective in workload.collectives & set(WORDS)), setting.label
            assert not oracle.forces_ll128(variables, version)
            assert "LL128" not in variables.get("NCCL_PROTO", "").upper()


def sizes_of(policy):
    ends = {end for rule in policy.rules for end in (rule.min_bytes, rule.max_bytes) if end}
    return sorted({1, 2**40, *(max(1, end + step) for end in ends for step in (-1, 0, 1))})


def wanted_row(policy, collective, size, group, default):
    """Return what a table should choose: the rule that fits, exact group first; one without a pair has no row."""
    fitting = [
        rule
        for rule in policy.rules
        if rule.collective is collective
        and rule.group_size in (default, group)
        and rule.min_bytes <= size
        and (rule.max_bytes is None or size <= rule.max_bytes)
        and rule.algorithm
        and rule.protocol
    ]
    rule = max(fitting, key=lambda rule: rule.group_size, default=None)
    return None if rule is None else (rule.algorithm, rule.protocol, rule.channels or -1)


@settings(max_examples=60, deadline=None)
@given(recommendations(), st.sampled_from([None, 4]))
def test_every_table_chooses_what_the_policy_chooses_or_says_what_it_cannot(made, channels):
    valid, policy = made.fingerprint, made.table.policy
    world_size = valid.world_size
    ours, rccl, ncclx = (render(made, format=f) for f in ("tuner-csv", "rccl-csv", "ncclx"))
    ours_rows, rccl_rows = readers.read_example_table(ours), readers.read_example_table(rccl)
    ncclx_rows = readers.read_ncclx_table(ncclx)
    nvidia_rows = _nvidia_rows(made, channels)
    places = [(valid.nodes, world_size, 0), (1, 2, 2)]
    for collective, (nodes, ranks, default), size in itertools.product(WORDS, places, sizes_of(policy)):
        word, wanted = WORDS[collective][0], wanted_row(policy, collective, size, ranks, default)
        assert readers.look_up(ours_rows, word, size, nodes, ranks) == wanted
        assert readers.look_up(rccl_rows, word, size, nodes, ranks) == wanted
        per_rank = readers.look_up_ncclx(ncclx_rows, word, size, nodes, ranks // nodes)
        if per_rank != wanted:
            near = [
                wanted_row(policy, collective, max(0, size + step), ranks, default) for step in range(1 - ranks, ranks)
            ]
            assert per_rank in near, "the choice of a size less than a byte per rank away"
            assert "as NCCLX counts bytes per rank" in ncclx or "narrower than a byte per rank" in ncclx
        if nvidia_rows and wanted:
            found = readers.look_up(nvidia_rows, word, size, nodes, ranks)
            assert found == (*wanted[:2], wanted[2] if wanted[2] > 0 else channels)
    for rule in policy.rules:
        if rule.algorithm is None or rule.protocol is None:
            for text in (ours, rccl, ncclx):
                assert f"warning: {rule_label(rule)}: a row must name" in text.replace("\n# ", " ")


def _nvidia_rows(made, channels):
    """Return the rows for NVIDIA's plugin, none where it refuses; every size of what has a row has one."""
    policy = made.table.policy
    unsaid = [r for r in policy.rules if not (r.algorithm and r.protocol) or (r.channels is None and channels is None)]
    if policy.is_default or unsaid:
        with pytest.raises((SettingError, NoRecommendationError), match="one channel"):
            render(made, format="nvidia-csv", channels=channels)
        return None
    rows = readers.read_example_table(render(made, format="nvidia-csv", channels=channels))
    assert all(row[5] >= 1 for row in rows)
    for (word, nodes, ranks), size in itertools.product({(row[0], *row[6:8]) for row in rows}, sizes_of(policy)):
        assert readers.look_up(rows, word, size, nodes, ranks), "no size of what has a row runs on one channel"
    return rows
