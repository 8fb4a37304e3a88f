"""What each reader of a rendered text makes of it: written from the rules of that reader, shares nothing with ncclt."""

import re
import tomllib
from types import SimpleNamespace

import yaml


class Config:
    """ProcessGroupNCCL.NCCLConfig as bound in torch/csrc/distributed/c10d/init.cpp: no other attribute can be set."""

    __slots__ = ("blocking", "cga_cluster_size", "max_ctas", "min_ctas", "net_name")


class Options:
    """ProcessGroupNCCL.Options of PyTorch."""

    def __init__(self, is_high_priority_stream=False):
        self.is_high_priority_stream = is_high_priority_stream
        self.config = Config()

    def given(self):
        """Return the options that were set."""
        return {name: getattr(self.config, name) for name in Config.__slots__ if hasattr(self.config, name)}


def read_pg_options(text):
    """Python that a training imports, with a stand-in for torch."""
    lines = text.splitlines()
    assert lines.count("from torch.distributed import ProcessGroupNCCL") == 1
    lines.remove("from torch.distributed import ProcessGroupNCCL")
    names = {"ProcessGroupNCCL": SimpleNamespace(Options=Options), "__builtins__": {}}
    exec("\n".join(lines), names)
    assert set(names) == {"ProcessGroupNCCL", "__builtins__", "options"}
    return names["options"].given()


def read_megatron(text, group):
    """get_nccl_options of Megatron-LM (megatron/core/parallel_state.py, 0.20), which ignores what it does not know."""
    known = yaml.safe_load(text)
    if group not in known:
        return None
    given, options = known[group], Options(is_high_priority_stream=known[group].get("is_high_priority_stream", False))
    for name in ("cga_cluster_size", "max_ctas", "min_ctas", "net_name"):
        if name in given:
            setattr(options.config, name, given[name])
    assert given.keys() == options.given().keys()
    return options.given()


def read_fish(text):
    """fish: in single quotes only \\\\ and \\' are escapes; `#` begins a comment at the start of a word."""
    found = {}
    for line in text.split("\n"):
        if not line or line.startswith("#"):
            continue
        name, quoted = re.fullmatch(r"set -gx (\w+) '((?:[^'\\]|\\.)*)';", line).groups()
        found[name] = re.sub(r"\\([\\'])", r"\1", quoted)
    return found


def read_csh(text):
    """csh: pieces in single quotes and escaped characters make one word; `!` is history unless a backslash precedes."""
    found = {}
    for line in text.split("\n"):
        if not line:
            continue
        name, word = re.fullmatch(r"setenv (\w+) (.*);", line).groups()
        value, rest = "", word
        while rest:
            if rest.startswith("\\'"):
                value, rest = value + "'", rest[2:]
                continue
            assert rest.startswith("'"), line
            piece, _, rest = rest[1:].partition("'")
            assert not re.search(r"(?<!\\)!", piece), line
            value += piece.replace("\\!", "!")
        found[name] = value
    return found


def read_words(text, option):
    """`$(...)` without quotes: split at blanks, expand patterns, remove no quotes."""
    assert text.endswith("\n")
    assert text.count("\n") == 1
    assert not set(text) & set("*?[]{}~'\"\\$`#")
    words = text.split()
    assert words[::2] == [option] * (len(words) // 2)
    return dict(word.split("=", 1) for word in words[1::2])


def read_verbatim(text):
    """docker's --env-file: lines that begin with # are comments, the rest is NAME=value as it stands."""
    lines = [line for line in text.split("\n") if line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


def read_nccl_conf(text):
    """NCCL's setEnvFile: no trimming, no quotes, 1023 characters for a value, # in column 0 only, first one wins."""
    found = {}
    for line in text.split("\n"):
        assert len(line) <= 4095
        if line.startswith("#") or "=" not in line:
            continue
        name, value = line.split("=", 1)
        found.setdefault(name[:1023], value[:1023])
    return found


DNS_1123_SUBDOMAIN = re.compile(r"(?=.{1,253}$)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
LABEL_KEY = re.compile(r"([a-z0-9.-]{1,253}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
ENV_NAME = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*")


def read_configmap(text):
    """YAML, and what the API server checks of a ConfigMap that `envFrom` reads; returns data and the whole object."""
    made = yaml.safe_load(text)
    assert set(made) == {"apiVersion", "kind", "metadata", "data"}
    assert (made["apiVersion"], made["kind"]) == ("v1", "ConfigMap")
    assert set(made["metadata"]) == {"name", "labels"}
    assert DNS_1123_SUBDOMAIN.fullmatch(made["metadata"]["name"]), made["metadata"]["name"]
    for key, value in made["metadata"]["labels"].items():
        assert LABEL_KEY.fullmatch(key)
        assert isinstance(value, str)
        assert LABEL_VALUE.fullmatch(value), value
    for key, value in made["data"].items():
        assert ENV_NAME.fullmatch(key)
        assert isinstance(value, str)
    return made["data"], made


def read_env_list(text):
    """YAML, and what the API server checks of a container's `env`."""
    rows = yaml.safe_load(text)
    assert all(set(row) == {"name", "value"} and isinstance(row["value"], str) for row in rows)
    assert all(ENV_NAME.fullmatch(row["name"]) for row in rows)
    assert len({row["name"] for row in rows}) == len(rows)
    return {row["name"]: row["value"] for row in rows}


def read_cloudai(text):
    """CloudAI's test definition: `extra_env_vars`, name -> text; a list would be searched by its agents."""
    document = tomllib.loads(text)
    assert set(document) == {"extra_env_vars"}
    assert all(ENV_NAME.fullmatch(name) and isinstance(v, str) for name, v in document["extra_env_vars"].items())
    return document["extra_env_vars"]


def read_example_table(text):
    """The example plugins of NVIDIA and RCCL: 255 characters a read, # in column 0 only, strtok skips empty fields."""
    rows = []
    for line in text.split("\n"):
        for piece in [line[i : i + 255] for i in range(0, len(line), 255)]:
            fields = [field.strip(" \t") for field in piece.split(",") if field]
            if piece.startswith("#") or not 8 <= len(fields) <= 10:
                assert piece.startswith("#"), piece
                continue
            kind, low, high, algorithm, protocol, *numbers = fields
            rows.append((kind, int(low), int(high), algorithm, protocol, *map(int, numbers)))
    return rows


def look_up(rows, kind, size_bytes, nodes, ranks):
    """Return (algorithm, protocol, channels) of the first row that matches, as the example plugins do."""
    for row in rows:
        if row[0] == kind and row[1] <= size_bytes <= row[2] and row[6] in (-1, nodes) and row[7] in (-1, ranks):
            return row[3:6]
    return None


def read_ncclx_table(text):
    """NCCLX: commas in brackets split nothing, and any line that it does not understand fails the communicator."""
    rows = []
    for line in text.split("\n"):
        if not line.strip() or line.strip().startswith("#"):
            continue
        fields = re.split(r",(?![^\[(]*[\])])", line)
        assert len(fields) == 7, line
        kind, span, algorithm, protocol, channels, nodes, local = fields
        assert kind in ("allreduce", "broadcast", "reduce", "allgather", "reducescatter")
        assert algorithm in ("tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat")
        assert protocol in ("ll", "ll128", "simple")
        low, high = re.fullmatch(r"\[(\d+),(\d*)[\])]", span).groups()
        assert not high or int(low) <= int(high), line
        assert not high or span.endswith("]")
        end = int(high) if high else 2**63 - 1
        rows.append((kind, int(low), end, algorithm, protocol, int(channels), int(nodes), int(local)))
    return rows


def look_up_ncclx(rows, kind, size_bytes, nodes, local):
    """Return (algorithm, protocol, channels) of the first row whose bytes per rank and place match."""
    per_rank = size_bytes // (nodes * local)
    for row in rows:
        if row[0] == kind and row[1] <= per_rank <= row[2] and (row[6], row[7]) == (nodes, local):
            return row[3:6]
    return None
