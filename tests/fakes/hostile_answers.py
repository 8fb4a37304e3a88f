"""What an honest ncclt server writes, which pairs of a hostile one no job may get, and how a consumer reads both.

`is_legal`, `all_legal` and `pairs_in` are the oracle: written by hand and without a line of ncclt, so that a hole in
the client's allow-list is seen. Used through hostile_server.py. Standard library alone.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Mapping

HONEST = {
    "NCCL_ALGO": "allreduce:ring;allgather:ring",
    "NCCL_BUFFSIZE": "8388608",
    "NCCL_MAX_CTAS": "8",
    "NCCL_PROTO": "allreduce:Simple;allgather:Simple",
}
"""What the honest server recommends, for NCCL 2.28.9 on two nodes of four GPUs, as revision `r-1`."""

_TRACE = {"NCCLT_RECOMMENDATION": "r-1"}
_REMARK = "# ncclt r-1: bert on leonardo 2x4, NCCL 2.28.9: tuned, 1.08x\n"
# --- the oracle ------------------------------------------------------------------------------------------------------

_NUMBERS: dict[str, set[int]] = {
    "NCCL_BUFFSIZE": {1048576, 2097152, 4194304, 8388608, 16777216},
    "NCCL_NTHREADS": {64, 128, 256, 512},
    "NCCL_MIN_CTAS": set(range(1, 65)),
    "NCCL_MAX_CTAS": set(range(1, 65)),
    "NCCL_MIN_NCHANNELS": set(range(1, 65)),
    "NCCL_MAX_NCHANNELS": set(range(1, 65)),
    "NCCL_P2P_NET_CHUNKSIZE": set(range(32768, 1048577, 4096)),
    "NCCL_P2P_NVL_CHUNKSIZE": set(range(32768, 2097153, 4096)),
    "NCCL_P2P_PCI_CHUNKSIZE": set(range(32768, 2097153, 4096)),
    "NCCL_MIN_P2P_NCHANNELS": {1, 2, 4, 8, 16, 32, 64},
    "NCCL_MAX_P2P_NCHANNELS": {1, 2, 4, 8, 16, 32, 64},
    "NCCL_NCHANNELS_PER_NET_PEER": {1, 2, 4, 8, 16},
    "NCCL_SOCKET_NTHREADS": set(range(17)),
    "NCCL_NSOCKS_PERTHREAD": set(range(65)),
    "NCCL_IB_QPS_PER_CONNECTION": set(range(1, 129)),
    "NCCL_IB_SPLIT_DATA_ON_QPS": {0, 1},
    "NCCLT_SIMULATED": {1},
    "NCCLT_RECORDED": {1},
}
_FUNCTIONS = {"allreduce", "allgather", "reducescatter", "broadcast", "reduce"}
_ALGORITHMS = {"tree", "ring", "collnetdirect", "collnetchain", "nvls", "nvlstree", "pat"}


def is_legal(name: str, value: str, nccl_version: str = "2.28.9") -> bool:
    """Tell whether a server may set a variable to a value on this NCCL.

    A forced list must leave every call an algorithm: Ring exists for all, Tree for all of all_reduce.
    """
    if name in _NUMBERS:
        return value in {str(number) for number in _NUMBERS[name]}
    if name == "NCCLT_RECOMMENDATION":
        return 1 <= len(value) <= 64 and all(c.isascii() and (c.isalnum() or c in "._-") for c in value)
    if name not in ("NCCL_ALGO", "NCCL_PROTO"):
        return False
    words = _ALGORITHMS if name == "NCCL_ALGO" else {"LL", "Simple"}
    major, minor = (int(part) for part in nccl_version.split(".")[:2])
    if (major, minor) < (2, 24):
        return value in ({"ring", "tree"} if name == "NCCL_ALGO" else words)
    if (major, minor) >= (2, 31) and value.split(";")[0] not in ("ring,tree", "LL,Simple"):
        return False  # what is not named would have nothing
    for position, entry in enumerate(value.split(";")):
        function, colon, listed = entry.rpartition(":")
        if colon and function not in _FUNCTIONS:
            return False
        if not colon and (position or listed not in ("ring,tree", "LL,Simple")):
            return False
        given = listed.split(",")
        if not given or not set(given) <= words:
            return False
        if name == "NCCL_ALGO" and "ring" not in given and not (function == "allreduce" and "tree" in given):
            return False
    return True


def all_legal(pairs: Mapping[str, str], nccl_version: str = "2.28.9") -> bool:
    """Tell whether a server may set all of these together."""
    sockets = int(pairs.get("NCCL_SOCKET_NTHREADS", 0)) * int(pairs.get("NCCL_NSOCKS_PERTHREAD", 0))
    legal = all(is_legal(name, value, nccl_version) for name, value in pairs.items()) and sockets <= 64
    return legal and int(pairs.get("NCCL_NCHANNELS_PER_NET_PEER", 0)) <= int(pairs.get("NCCL_MIN_P2P_NCHANNELS", 0))


def pairs_in(text: str, format: str) -> dict[str, str]:
    """Read a rendered text as its consumer would; raise ValueError where it is anything but assignments.

    Args:
        text: of `export` (bash), `pyxis`, `dotenv`, `nccl-conf`, `mpirun-x`, `docker-env`, `configmap`,
            `trainjob-env`, `cloudai`, `slurm-taskprolog` or `json`.
        format: which of them.
    """
    if format == "json":
        document = json.loads(text)
        return {**document["variables"], **{f"NCCL_{k}": str(v) for k, v in document["table_parameters"].items()}}
    lines = [line for line in text.split("\n") if line and not line.startswith("# ")]
    found: dict[str, str] = {}
    if format in ("mpirun-x", "docker-env"):
        words = text.split()
        option = "-x" if format == "mpirun-x" else "--env"
        if words[::2] != [option] * (len(words) // 2) or len(words) % 2:
            raise ValueError(f"no pairs of words: {text!r}")
        lines = words[1::2]
    elif format == "slurm-taskprolog":
        start, end = lines.index("  printf '%s\\n' \\"), lines.index("fi")
        if lines[0] != "#!/bin/sh" or lines[end:] != ["fi", "exit 0"]:
            raise ValueError(f"no TaskProlog: {text!r}")
        # In the shell a quoted string ends at the next quote, whatever stands in it.
        quoted = [re.fullmatch(r"    '([^']*)'( \\)?", line) for line in lines[start + 1 : end]]
        lines = [match[1].removeprefix("export ") if match else "" for match in quoted]
    elif format == "configmap":
        head, data = lines[: lines.index("data:")], lines[lines.index("data:") + 1 :]
        if (
            [line.split(":")[0].strip() for line in head]
            != [
                "apiVersion",
                "kind",
                "metadata",
                "name",
                "labels",
                "app.kubernetes.io/managed-by",
                "ncclt-content",
                "ncclt-recommendation",
            ]
            or head[1] != "kind: ConfigMap"
            or not head[3].startswith("  name: ncclt.")
        ):
            raise ValueError(f"no ConfigMap: {text!r}")
        lines = ["=".join(json.loads(part) if part[0] == '"' else part for part in line.split(": ")) for line in data]
    elif format == "trainjob-env":
        names, values = lines[::2], lines[1::2]
        lines = [
            name.removeprefix("- name: ") + "=" + json.loads(value.removeprefix("  value: "))
            for name, value in zip(names, values, strict=True)
        ]
    elif format == "cloudai":
        if lines.pop(0) != "[extra_env_vars]":
            raise ValueError(f"no table of variables: {text!r}")
        lines = ["=".join((name, json.loads(value))) for name, value in (line.split(" = ") for line in lines)]
    elif format in ("export", "pyxis"):
        words = [shlex.split(line) for line in lines]
        if any(len(line) != 2 or line[0] != "export" for line in words) or re.search(r"[$`\"\\]", "".join(lines)):
            raise ValueError(f"something else than exports: {text!r}")
        lines = [line[1] for line in words]
    for line in lines:
        name, equals, value = line.strip().partition("=")
        if not equals or not re.fullmatch(r"[A-Z][A-Z0-9_]*", name) or name in found:
            raise ValueError(f"no pair: {line!r}")
        found[name] = value
    if format == "pyxis":
        wanted = "--container-env=" + ",".join(name for name in found if name != "NCCLT_PYXIS")
        if found.pop("NCCLT_PYXIS", "") != wanted:
            raise ValueError("another option for srun")
    return found


def group_options_in(text: str) -> dict[str, str]:
    """Read options of a process group as Python or as YAML for `tp`; raise ValueError where it is anything else."""
    lines = [line for line in text.split("\n") if line and not line.startswith("# ")]
    if lines[:2] == ["from torch.distributed import ProcessGroupNCCL", "options = ProcessGroupNCCL.Options()"]:
        pairs = [line.removeprefix("options.config.").split(" = ") for line in lines[2:]]
    elif len(lines) == 1 and lines[0].startswith("tp: {") and lines[0].endswith("}"):
        inside = lines[0].removeprefix("tp: {").removesuffix("}")
        pairs = [part.split(": ") for part in inside.split(", ") if part]
    else:
        raise ValueError(f"no options: {text!r}")
    found = dict(pairs)
    if not found.keys() <= {"min_ctas", "max_ctas"} or not set(found.values()) <= {str(n) for n in range(1, 65)}:
        raise ValueError(f"other options: {text!r}")
    return found


def is_table(text: str, nccl_version: str = "2.28.9") -> bool:
    """Tell whether a text is remarks and rows that a tuner plugin can read, and asks for legal variables only."""
    for line in text.removesuffix("\n").split("\n"):
        if line.startswith("# "):
            need = re.fullmatch(r"# needs (.*?)=(.*) in the environment", line)
            if not line.isascii() or not line.isprintable() or (need and not is_legal(need[1], need[2], nccl_version)):
                return False
            continue
        if "[" in line:  # as NCCLX has its ranges
            line = re.sub(r"\[(\d+),(\d*)[)\]]", lambda span: f"{span[1]},{span[2] or span[1]}", line)
        function, first, last, algorithm, protocol, channels, *more = line.split(",")
        numbers = [int(number) for number in (first, last, channels, *more)]
        known = function in _FUNCTIONS and algorithm.replace("_", "") in _ALGORITHMS
        if not known or protocol not in ("ll", "ll128", "simple") or not -1 <= numbers[2] <= 64 or min(numbers) < -1:
            return False
    return text.endswith("\n")


# --- what an honest server writes ------------------------------------------------------------------------------------

PAIR_FORMATS = (
    "export",
    "pyxis",
    "dotenv",
    "nccl-conf",
    "mpirun-x",
    "docker-env",
    "configmap",
    "trainjob-env",
    "cloudai",
    "slurm-taskprolog",
    "json",
)


def written(format: str, pairs: Mapping[str, str], *, shell: str = "bash", unset: bool = False) -> str:
    """Write pairs as a server of ncclt would, whatever they hold; tables carry them as `# needs` lines."""
    given = {**pairs, **({} if format in ("nccl-conf", "json") or "NCCLT_RECOMMENDATION" in pairs else _TRACE)}
    if format == "json":
        # A number of the catalogue comes with the table as well.
        numbers = {n[5:]: v for n, v in pairs.items() if n[:5] == "NCCL_" and re.fullmatch(r"-?[0-9]{1,300}", v)}
        kept = {n: int(v) for n, v in numbers.items() if not n.startswith(("MIN_", "MAX_"))}
        return json.dumps(document(variables=dict(pairs), table_parameters=kept), indent=2) + "\n"
    if format == "export" and unset:
        forms = {"bash": "unset {0}\n", "fish": "set -q {0}; and set -e {0};\n", "csh": "unsetenv {0};\n"}
        return "".join(forms[shell].format(name) for name in given)
    if format == "export" and shell != "bash":
        form = {"fish": "set -gx {} '{}';\n", "csh": "setenv {} '{}';\n"}[shell]
        return "".join(form.format(*pair) for pair in given.items()) + (_REMARK if shell == "fish" else "")
    if format in ("export", "pyxis"):
        lines = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in given.items())
        if format == "pyxis":
            lines += f"export NCCLT_PYXIS=--container-env={','.join(given)}\n"
        return lines + _REMARK
    if format in ("mpirun-x", "docker-env"):
        option = "-x" if format == "mpirun-x" else "--env"
        return " ".join(f"{option} {name}={value}" for name, value in given.items()) + "\n"
    if format == "configmap":
        head = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: ncclt.bert.leonardo.2x4\n  labels:\n"
        labels = '    app.kubernetes.io/managed-by: ncclt\n    ncclt-content: "{}"\n    ncclt-recommendation: "r-1"\n'
        content = hashlib.sha256(json.dumps(given, sort_keys=True).encode()).hexdigest()[:12]
        data = "".join(f"  {name}: {json.dumps(value)}\n" for name, value in given.items())
        return _REMARK + head + labels.format(content) + "data:\n" + data
    if format == "trainjob-env":
        return _REMARK + "".join(f"- name: {n}\n  value: {json.dumps(v)}\n" for n, v in given.items())
    if format == "cloudai":
        return _REMARK + "[extra_env_vars]\n" + "".join(f"{n} = {json.dumps(v)}\n" for n, v in given.items())
    if format == "slurm-taskprolog":
        return _prolog(given)
    if format in ("dotenv", "nccl-conf"):
        return _REMARK + "".join(f"{name}={value}\n" for name, value in given.items())
    needs = "".join(f"# needs {name}={value} in the environment\n" for name, value in pairs.items())
    if format == "ncclx":
        return _REMARK + needs + "allreduce,[0,),ring,simple,8,2,4\n"
    if format in ("nvidia-csv", "rccl-csv"):
        more = ",-1,-1" if format == "rccl-csv" else ""
        return _REMARK + needs + f"allreduce,0,9223372036854775807,ring,simple,8,2,8{more}\n"
    rows = "allreduce,0,9223372036854775807,ring,simple,8,2,8\n"
    head = f"# ncclt-table 1 id=r-1 nccl=2.28.9 nodes=2 ranks=8 rows=1 fnv1a={_fnv1a(rows):016x}\n"
    return head + _REMARK + needs + rows


def document(**changed: object) -> dict[str, object]:
    """Return what the honest server answers as `json`, with some fields changed."""
    verdict = {
        "decision": "tuned",
        "reason": "proven",
        "speedup": 1.08,
        "interval": [1.06, 1.1],
        "blocks": 6,
        "default_us": 9,
        "policy_us": 8,
        "min_effect": 0.02,
    }
    rule = {
        "collective": "all_reduce",
        "min_bytes": 0,
        "max_bytes": None,
        "group_size": 0,
        "algorithm": "ring",
        "protocol": "simple",
        "channels": 8,
    }
    return {
        "schema": 1,
        "recommendation": "r-1",
        "cluster": "leonardo",
        "model": "bert",
        "nodes": 2,
        "gpus_per_node": 4,
        "nccl_version": "2.28.9",
        "decision": "tuned",
        "speedup": 1.08,
        "interval": [1.06, 1.1],
        "origin": "measured",
        "launcher": "slurm",
        "groups": [[8, True]],
        "variables": dict(HONEST),
        "lost": [],
        "remarks": [_REMARK[2:-1]],
        "table": [rule],
        "table_parameters": {"BUFFSIZE": 8388608},
        "table_verdict": verdict,
        **changed,
    }


def _prolog(pairs: Mapping[str, str], first: str = "#!/bin/sh") -> str:
    lines = " \\\n".join(f"    {shlex.quote(f'export {name}={value}')}" for name, value in pairs.items())
    return (
        f"{first}\n{_REMARK}"
        "# TaskProlog of Slurm: srun --task-prolog=FILE, or TaskProlog=FILE in slurm.conf.\n"
        "# It starts no program, waits for nothing and always ends with 0.\n"
        'if [ "${SLURM_STEP_NUM_NODES:-${SLURM_JOB_NUM_NODES:-}}" = 2 ]; then\n'
        f"  printf '%s\\n' \\\n{lines}\nfi\nexit 0\n"
    )


def _fnv1a(rows: str) -> int:
    value = 0xCBF29CE484222325
    for byte in rows.encode():
        value = (value ^ byte) * 0x100000001B3 & (2**64 - 1)
    return value


# --- what no job may get -------------------------------------------------------------------------------------------

HOSTILE_PAIRS: tuple[tuple[str, str], ...] = (
    # Values: `^` and LL128 corrupt data, a list without Ring fails calls, sizes beyond the domain end jobs.
    ("NCCL_PROTO", "^LL"),
    ("NCCL_PROTO", "LL128"),
    ("NCCL_PROTO", "ll128"),
    ("NCCL_PROTO", "allreduce:LL128"),
    ("NCCL_PROTO", "LL,LL128,Simple"),
    ("NCCL_PROTO", "^LL128"),
    ("NCCL_PROTO", ""),
    ("NCCL_PROTO", "allreduce:"),
    ("NCCL_PROTO", "allreduce:Simple;"),
    ("NCCL_PROTO", "allreduce:^Simple"),
    ("NCCL_PROTO", "allreduce:LL,^LL128"),
    ("NCCL_ALGO", "Tree"),
    ("NCCL_ALGO", "tree"),
    ("NCCL_ALGO", "^Ring"),
    ("NCCL_ALGO", "allgather:tree"),
    ("NCCL_ALGO", "NVLS"),
    ("NCCL_ALGO", "allreduce:nvls"),
    ("NCCL_ALGO", ""),
    ("NCCL_ALGO", ";"),
    ("NCCL_ALGO", "allreduce:ring;broadcast:nvls"),
    ("NCCL_ALGO", "sendrecv:ring"),
    ("NCCL_ALGO", "allreduce:"),
    ("NCCL_ALGO", "file:/srv/evil"),
    ("NCCL_ALGO", "allreduce:ring,evil"),
    ("NCCL_ALGO", "allreduce:ring;" * 100),
    ("NCCL_BUFFSIZE", "-1"),
    ("NCCL_BUFFSIZE", "0"),
    ("NCCL_BUFFSIZE", "99999999999999"),
    ("NCCL_BUFFSIZE", "8388607"),
    ("NCCL_BUFFSIZE", "08388608"),
    ("NCCL_BUFFSIZE", "+8388608"),
    ("NCCL_BUFFSIZE", "8388608.0"),
    ("NCCL_BUFFSIZE", "8M"),
    ("NCCL_BUFFSIZE", "0x800000"),
    ("NCCL_BUFFSIZE", "8_388_608"),
    ("NCCL_BUFFSIZE", ""),
    ("NCCL_BUFFSIZE", "٨٣٨٨٦٠٨"),
    ("NCCL_BUFFSIZE", "9" * 5000),
    ("NCCL_SOCKET_NTHREADS", "100000"),
    ("NCCL_SOCKET_NTHREADS", "17"),
    ("NCCL_NSOCKS_PERTHREAD", "65"),
    ("NCCL_MIN_CTAS", "0"),
    ("NCCL_MAX_CTAS", "65"),
    ("NCCL_NTHREADS", "1"),
    ("NCCL_P2P_NET_CHUNKSIZE", "131073"),
    ("NCCL_P2P_NET_CHUNKSIZE", "2097152"),
    ("NCCL_IB_QPS_PER_CONNECTION", "1000000"),
    ("NCCLT_SIMULATED", "0"),
    ("NCCLT_RECOMMENDATION", "$(id)"),
    ("NCCLT_RECOMMENDATION", "x" * 1000),
    # Names: libraries, files and the choice of the network belong to this machine; the rest is not reviewed.
    ("NCCL_TUNER_PLUGIN", "/srv/evil.so"),
    ("NCCL_NET_PLUGIN", "/srv/evil.so"),
    ("NCCL_PROFILER_PLUGIN", "evil"),
    ("NCCL_CONF_FILE", "/srv/evil.conf"),
    ("NCCL_DEBUG_FILE", "/srv/home/.bashrc"),
    ("NCCL_DEBUG", "TRACE"),
    ("NCCL_TOPO_FILE", "/srv/evil.xml"),
    ("NCCL_GRAPH_DUMP_FILE", "/srv/home/.bashrc"),
    ("NCCL_NET", "evil"),
    ("NCCL_SOCKET_IFNAME", "lo"),
    ("NCCL_IB_HCA", "evil"),
    ("NCCL_COMM_ID", "10.0.0.1:1"),
    ("NCCL_IGNORE_DISABLED_P2P", "2"),
    ("NCCL_GDR_FLUSH_DISABLE", "1"),
    ("NCCL_LL_BUFFSIZE", "1"),
    ("NCCL_CHUNK_SIZE", "1"),
    ("NCCL_NVLS_ENABLE", "1"),
    ("NCCL_EVIL", "1"),
    ("NCCL_", "1"),
    ("nccl_algo", "ring"),
    ("NCCLT_SERVER", "http://evil"),
    ("NCCLT_STORAGE", "sqlite:////srv/evil"),
    ("NCCLT_POLICY", "/srv/evil.csv"),
    ("NCCLT_PLUGIN_REPORT", "/srv/home"),
    ("NCCLT_POLICY_SHM", "evil"),
    ("NCCLT_API_KEY", "evil"),
    ("NCCLT_PYXIS", "--container-image=evil"),
    ("LD_PRELOAD", "/srv/evil.so"),
    ("PATH", "/srv/evil"),
    ("BASH_ENV", "/srv/evil.sh"),
    ("PROMPT_COMMAND", "id"),
    ("", "1"),
    ("A B", "1"),
    ("NCCL_ALGO;id;A", "1"),
    # Values that a shell, a YAML reader or a reader of lines could take for more.
    ("NCCL_BUFFSIZE", "$(id)"),
    ("NCCL_BUFFSIZE", "`id`"),
    ("NCCL_BUFFSIZE", "8388608;id"),
    ("NCCL_BUFFSIZE", "'; id; '"),
    ("NCCL_BUFFSIZE", "8388608\nLD_PRELOAD=/srv/evil.so"),
    ("NCCL_BUFFSIZE", "8388608 --privileged"),
    ("NCCL_BUFFSIZE", '8388608"\n  evil: "1'),
    ("NCCL_BUFFSIZE", "8388608\r"),
    ("NCCL_BUFFSIZE", "8388608\x00"),
    ("NCCL_BUFFSIZE", "8388608\u2028id"),
    ("NCCL_ALGO", "allreduce:ring'$(id)'"),
    ("NCCL_BUFFSIZE", "!8388608"),
)
"""Pairs of which no job may ever get one; on NCCL 2.28.9."""
