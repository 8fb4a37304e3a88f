"""What ncclt says of NCCL's releases, compared with what tuner/read_nccl.py read from the libraries themselves."""

import ctypes
import json
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

from ncclt.core.algo_proto_text import ALGORITHM_WORDS, COLLECTIVE_WORDS, PER_COLLECTIVE_SINCE
from ncclt.core.algorithms import ALGORITHM_SINCE, Algorithm, Protocol
from ncclt.core.nccl_version import NcclVersion
from ncclt.health.doctor.variables import REMOVED, REPLACED, is_known
from ncclt.nccl.parameters import CATALOGUE, searchable
from ncclt.nccl.tuner_plugin.build import compiler
from ncclt.nccl.tuner_plugin.loaded import API_VERSIONS, layout
from ncclt.nccl.tuner_table import ALGORITHMS, FUNCTIONS, PROTOCOLS
from ncclt.nccl.variables import KNOWN as CLASSIFIED
from ncclt.nccl.variables import classify

ROOT = Path(__file__).parents[2]
KNOWN = json.loads((ROOT / "docs" / "reference" / "nccl-versions.json").read_text(encoding="utf-8"))
READ = [NcclVersion.parse(version) for version in KNOWN["wheels"]]
"""The releases that were read, oldest first."""
READ_APIS = [api for api in API_VERSIONS if f"ncclTuner_v{api}_t" in KNOWN["structs"]]
"""Tuner APIs of these releases; v7 came with 2.32.6, which is not on PyPI yet."""


def expand(ranges):
    """Return the releases of `A..B, C..`."""
    found = []
    for part in filter(None, ranges.split(", ")):
        first, dots, last = part.partition("..")
        begin, end = NcclVersion.parse(first), NcclVersion.parse(last) if last else READ[-1]
        found += [version for version in READ if begin <= version <= (end if dots else begin)]
    return found


def numbers(versions: Iterable[NcclVersion]) -> list[str]:
    return [str(version) for version in versions]


def variable(name):
    return expand(KNOWN["variables"].get(name, ""))


def test_what_was_read_covers_the_releases_that_ncclt_is_for():
    assert sorted(READ) == READ
    assert {version[:2] for version in READ} >= {(2, minor) for minor in range(18, 33)}
    assert all(re.fullmatch(r"[0-9a-f]{64}", sha) for wheels in KNOWN["wheels"].values() for sha in wheels.values())


def test_a_parameter_exists_in_the_releases_that_the_catalogue_says():
    said = {row.name: numbers(version for version in READ if row.exists_in(version)) for row in CATALOGUE}
    assert {row.name: numbers(variable(row.variable)) for row in CATALOGUE} == said


def test_no_parameter_is_declared_without_being_read():
    assert not {row.variable for row in CATALOGUE} & set(KNOWN["variables_never_asked_for"])


def test_each_release_reads_what_would_be_searched_there():
    for version in READ:
        for row in searchable(version, beside_compute=True):
            assert version in variable(row.variable), f"{row.variable} in {version}"


def test_removed_variables_are_read_by_no_release_from_then_on():
    for name, (gone, _) in REMOVED.items():
        readers = variable(name)
        later = [version for version in READ if version >= NcclVersion.parse(gone)]
        assert not set(readers) & set(later), name
        assert not readers or readers[-1] == READ[READ.index(later[0]) - 1], f"{name} was gone earlier"


def test_deprecated_variables_still_act_and_their_successors_exist():
    for name, (_, successor) in REPLACED.items():
        assert READ[-1] in variable(name), name
        assert all(READ[-1] in variable(word) for word in re.findall(r"NCCL_\w+", successor)), name


def test_the_doctor_knows_every_variable_that_a_release_reads_and_no_other():
    assert sorted(name for name in KNOWN["variables"] if not is_known(name)) == []
    others = {name for name in CLASSIFIED if name.startswith("NCCLT_") or "PyTorch" in classify(name)[1]}
    builds = {name for name in CLASSIFIED if "build" in classify(name)[1]}
    nccl_asks = set(CLASSIFIED) - others - builds
    assert sorted(nccl_asks - set(KNOWN["variables"])) == []


def test_algorithms_protocols_and_functions_have_nccls_names_and_numbers():
    words = [ALGORITHM_WORDS[algorithm] for algorithm in Algorithm]
    for form in KNOWN["names"]["algorithms"]:
        for version in expand(form["versions"]):
            assert [name.lower() for name in form["is"]] == [
                word for word, algorithm in zip(words, Algorithm, strict=True) if ALGORITHM_SINCE[algorithm] <= version
            ], str(version)
    assert [algorithm.value for algorithm in Algorithm] == list(ALGORITHMS)
    assert [[name.lower() for name in form["is"]] for form in KNOWN["names"]["protocols"]] == [list(PROTOCOLS)]
    assert [protocol.value for protocol in Protocol] == list(PROTOCOLS)
    assert [[name.lower() for name in form["is"]] for form in KNOWN["names"]["functions"]] == [list(FUNCTIONS)]
    assert set(COLLECTIVE_WORDS.values()) == set(FUNCTIONS)


def test_lists_per_collective_are_named_since_the_release_that_can_parse_them():
    parses = expand(KNOWN["messages"]["All entries except the first must have a prefix"])
    assert numbers(parses) == numbers(version for version in READ if version >= PER_COLLECTIVE_SINCE)


def test_the_plugin_has_every_version_that_a_release_asks_for_since_2_21():
    asked = {}
    for name, ranges in KNOWN["plugin_symbols"].items():
        if match := re.fullmatch(r"ncclTunerPlugin_v(\d+)", name):
            asked[int(match[1])] = expand(ranges)
    assert {api for api, versions in asked.items() if versions[-1] >= NcclVersion(2, 21)} == set(READ_APIS)
    assert set(API_VERSIONS) - set(READ_APIS) <= {7}
    # Docs and comments name these.
    assert {api: str(versions[0]) for api, versions in asked.items()} == {
        1: "2.19.3",
        2: "2.21.5",
        3: "2.22.3",
        4: "2.24.3",
        5: "2.28.3",
        6: "2.30.3",
    }


# How our header calls NCCL's types. An enum is as wide as an int.
C_TYPES = """
#include "nccl_tuner_abi.h"
typedef int ncclResult_t, ncclFunc_t;
typedef nccl_logger ncclDebugLogger_t;
typedef struct nccl_nvl_domain_v5 ncclNvlDomainInfo_v5_t, ncclNvlDomainInfo_v6_t;
typedef struct nccl_constants_v5 ncclTunerConstants_v5_t, ncclTunerConstants_v6_t;
"""


def layouts(prefix, api):
    """Return the forms of one struct of NCCL: lists of (offset, declaration), the last is its size."""
    forms = KNOWN["structs"][f"{prefix}_v{api}_t"]
    return [[(int(line.split(" ", 1)[0]), line.split(" ", 1)[1]) for line in form["is"]] for form in forms]


def in_our_words(name):
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


def declarations(api):
    """Yield (offset, member in our words, its type in C) of the tuner of one API."""
    (members,) = layouts("ncclTuner", api)
    for offset, text in members[:-1]:
        declared, name, arguments = re.fullmatch(r"(.*?)\s*(\w+)(\(.*\))?", text).groups()
        yield offset, in_our_words(name), f"{declared} (*){arguments}" if arguments else declared


@pytest.mark.parametrize("api", READ_APIS)
def test_our_header_is_laid_out_as_nccl_was_built(api, tmp_path):
    if compiler() is None:
        pytest.skip("no C compiler here")
    (members,) = layouts("ncclTuner", api)
    asserted = [f"sizeof(struct nccl_tuner_v{api}) == {members[-1][0]}"]
    for offset, name, kind in declarations(api):
        asserted.append(f"offsetof(struct nccl_tuner_v{api}, {name}) == {offset}")
        member = f"__typeof__(((struct nccl_tuner_v{api} *)0)->{name})"
        asserted.append(f"__builtin_types_compatible_p({member}, {kind})")
    if api >= 5:
        (domain,) = layouts("ncclNvlDomainInfo", api)
        asserted.append(f"sizeof(struct nccl_nvl_domain_v5) == {domain[-1][0]}")
        (constants,) = layouts("ncclTunerConstants", api)
        asserted.append(f"sizeof(struct nccl_constants_v5) == {constants[-1][0]}")
        bandwidth = next(offset for offset, text in constants if "llMaxBws" in text)
        asserted.append(f"offsetof(struct nccl_constants_v5, bandwidth) == {bandwidth}")
    for value, name in newest("ncclDebugLogLevel", "ncclDebugLogSubSys"):
        if name in ("NCCL_LOG_INFO", "NCCL_INIT", "NCCL_TUNING"):
            asserted.append(f"{name if 'LOG' in name else name.replace('NCCL_', 'NCCL_LOG_')} == {value}")
    for value, name in newest("ncclFunc_t")[: len(FUNCTIONS)]:
        asserted.append(f"NCCL_{in_our_words(name.removeprefix('ncclFunc')).upper()} == {value}")
    source = tmp_path / "layout.c"
    source.write_text(C_TYPES + "".join(f'_Static_assert({one}, "{i}");\n' for i, one in enumerate(asserted)))
    done = subprocess.run(
        [compiler(), "-std=c11", "-fsyntax-only", "-I", ROOT / "plugin", source], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert len(asserted) > 10


def of_ctypes(kind):
    """Return what a type of ctypes is to a caller: `pointer`, or its width in bytes."""
    pointer = kind in (ctypes.c_char_p, ctypes.c_void_p) or hasattr(kind, "contents") or hasattr(kind, "argtypes")
    return "pointer" if pointer else ctypes.sizeof(kind)


def of_c(text):
    """Return the same of a type of NCCL."""
    if text.endswith("*") or text == "ncclDebugLogger_t":
        return "pointer"
    return {"size_t": 8, "uint64_t": 8, "int": 4, "ncclFunc_t": 4, "ncclResult_t": 4}[text]


@pytest.mark.parametrize("api", READ_APIS)
def test_the_harness_plays_nccl_as_it_was_built(api):
    struct = layout(api)
    offsets = [getattr(struct, name).offset for name, _ in struct._fields_]
    members = list(declarations(api))
    assert offsets == [offset for offset, *_ in members]
    called = [kind for name, kind in struct._fields_ if name in ("init", "choose", "end")]
    for function, (_, _, declared) in zip(called, members[1:4], strict=True):
        result, arguments = re.fullmatch(r"(\w+) \(\*\)\((.*)\)", declared).groups()
        assert of_ctypes(function._restype_) == of_c(result)
        assert [of_ctypes(kind) for kind in function._argtypes_] == [of_c(text) for text in arguments.split(", ")]


def newest(*enums):
    """Return (value, name) of the newest form of enums."""
    lines = [line for enum in enums for line in KNOWN["enums"][enum][-1]["is"]]
    return [(int(line.split()[0]), line.split()[1]) for line in lines]
