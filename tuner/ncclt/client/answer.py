"""Check of answers: the values that a job may get from a server, cache, decision, file or store, and their formats.

One allow-list defines which variables may be set and to which values; a library, a file, a network or anything else of
this machine is never among them. Every text that sets variables is written here from what passed the check, also those
of the service and of `ncclt env` from a store; in a table from a server each row is matched as a whole, field by field.

Only the standard library and nothing of ncclt, in the syntax of Python 3.8: this folder can be copied into any training
image.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import textwrap
from collections.abc import Iterable, Mapping
from typing import Any

# Written by tuner/generate_answer_values.py from the catalogue; `make lint` compares.
# fmt: off
_NUMBERS = {
    "NCCL_MIN_CTAS": range(1, 65), "NCCL_MAX_CTAS": range(1, 65), "NCCL_MIN_NCHANNELS": range(1, 65),
    "NCCL_MAX_NCHANNELS": range(1, 65), "NCCL_BUFFSIZE": (1048576, 2097152, 4194304, 8388608, 16777216),
    "NCCL_NTHREADS": (64, 128, 256, 512), "NCCL_P2P_NET_CHUNKSIZE": range(32768, 1048577, 4096),
    "NCCL_P2P_PCI_CHUNKSIZE": range(32768, 2097153, 4096), "NCCL_P2P_NVL_CHUNKSIZE": range(32768, 2097153, 4096),
    "NCCL_MIN_P2P_NCHANNELS": (1, 2, 4, 8, 16, 32, 64), "NCCL_MAX_P2P_NCHANNELS": (1, 2, 4, 8, 16, 32, 64),
    "NCCL_NCHANNELS_PER_NET_PEER": (1, 2, 4, 8, 16), "NCCL_SOCKET_NTHREADS": range(17),
    "NCCL_NSOCKS_PERTHREAD": range(65), "NCCL_IB_QPS_PER_CONNECTION": range(1, 129),
    "NCCL_IB_SPLIT_DATA_ON_QPS": (0, 1),
}
_LISTS = {
    "NCCL_ALGO": {
        "allreduce": ("tree ring", "collnetdirect collnetchain nvls nvlstree"),
        "allgather": ("ring", "collnetdirect nvls pat"), "reducescatter": ("ring", "collnetdirect nvls pat"),
        "broadcast": ("ring", ""), "reduce": ("ring", ""),
    },
    "NCCL_PROTO": {
        "allreduce": ("LL Simple", ""), "allgather": ("LL Simple", ""), "reducescatter": ("LL Simple", ""),
        "broadcast": ("LL Simple", ""), "reduce": ("LL Simple", ""),
    },
}
_BASE = {"NCCL_ALGO": "ring,tree", "NCCL_PROTO": "LL,Simple"}
_NAMED_SINCE, _BASE_SINCE, _MOST_SOCKETS = (2, 24), (2, 31), 64
_COLLECTIVE = "all_reduce|all_gather|reduce_scatter|broadcast|reduce"
_ALGORITHM, _PROTOCOL = "tree|ring|collnet_direct|collnet_chain|nvls|nvls_tree|pat", "ll|ll128|simple"
# fmt: on

# Per format: one variable ({0} its name, {1} its value, {2} quoted for sh), the separator, and the whole text. No value
# that `checked` lets pass holds a quote, a backslash or a blank. In `export` the remarks come last, as an unquoted eval
# joins all lines into one; csh has comments in scripts only. fish would fail where it removes what is not set.
_FORMS = {
    "export": ("export {0}={2}\n", "", "{pairs}{remarks}"),
    "export fish": ("set -gx {0} '{1}';\n", "", "{pairs}{remarks}"),
    "export csh": ("setenv {0} '{1}';\n", "", "{pairs}"),
    "export unset": ("unset {0}\n", "", "{pairs}"),
    "export fish unset": ("set -q {0}; and set -e {0};\n", "", "{pairs}"),
    "export csh unset": ("unsetenv {0};\n", "", "{pairs}"),
    # An image's own value goes before the host's unless `--container-env` names the variable (README of NVIDIA/pyxis).
    "pyxis": ("export {0}={2}\n", "", "{pairs}export NCCLT_PYXIS=--container-env={names}\n{remarks}"),
    "dotenv": ("{0}={1}\n", "", "{remarks}{pairs}"),
    "nccl-conf": ("{0}={1}\n", "", "{remarks}{pairs}"),
    "mpirun-x": ("-x {0}={1}", " ", "{pairs}\n"),
    "docker-env": ("--env {0}={1}", " ", "{pairs}\n"),
    "cloudai": ('{0} = "{1}"\n', "", "{remarks}[extra_env_vars]\n{pairs}"),
    "trainjob-env": ('- name: {0}\n  value: "{1}"\n', "", "{remarks}{pairs}"),
    # Of one process group: {0} is the name of the option.
    "pg-options": (
        "options.config.{0} = {1}\n",
        "",
        "{remarks}from torch.distributed import ProcessGroupNCCL\n\noptions = ProcessGroupNCCL.Options()\n{pairs}",
    ),
    # Megatron fails on a group without a mapping, and on a file without groups.
    "megatron-yaml": ("{0}: {1}", ", ", "{remarks}{group}: {{{pairs}}}\n"),
    # A pod template that carries the label ncclt-content, a hash of the data, restarts its pods when they change.
    "configmap": (
        '  {0}: "{1}"\n',
        "",
        "{remarks}apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {object}\n  labels:\n"
        '    app.kubernetes.io/managed-by: ncclt\n    ncclt-content: "{content}"\n    ncclt-recommendation: "{label}"\n'
        "data:\n{pairs}",
    ),
}
# Runs in every task of every job where slurm.conf names it, so it asks the job which workload it is, and leaves alone
# what ncclt launches itself (NCCLT_LAUNCH): trials, which measure other settings.
_TASK_PROLOG = """\
#!/bin/sh
{remarks}# TaskProlog of Slurm: srun --task-prolog=FILE, or TaskProlog=FILE in slurm.conf.
{promise}# For jobs {user} that export NCCLT_MODEL as below, in steps on {nodes} x {gpus} GPUs; \
in all others it does nothing.
gpus="${{SLURM_GPUS_ON_NODE:-${{SLURM_STEP_TASKS_PER_NODE:-}}}}"
if [ "${{NCCLT_MODEL:-}}" = {model} ] \\
  && [ -z "${{NCCLT_LAUNCH:-}}" ] \\
{owned}  && [ "${{SLURM_STEP_NUM_NODES:-${{SLURM_JOB_NUM_NODES:-}}}}" = {nodes} ] \\
  && {{ [ "$gpus" = {gpus} ] || [ "$gpus" = "{gpus}(x{nodes})" ]; }}{condition}; then
{before}  printf '%s\\n' \\
{exports}
{after}fi
exit 0
"""
_PROLOG_PARTS = {
    "promise": "# It starts no program, waits for nothing and always ends with 0.\n",
    "condition": "",
    "before": "",
    "after": "",
}
TABLES = ("tuner-csv", "nvidia-csv", "rccl-csv", "ncclx")
GROUP_FORMS = ("pg-options", "megatron-yaml")
"""The formats that deliver the options of one process group."""

_GROUP_OPTIONS = {"NCCL_MIN_CTAS": "min_ctas", "NCCL_MAX_CTAS": "max_ctas"}
"""Variables of NCCL -> the same for one communicator, in ncclConfig_t since NCCL 2.17.

Both readers use these names: `ProcessGroupNCCL.Options().config` (torch/csrc/distributed/c10d/init.cpp of PyTorch) and
the YAML of Megatron's --nccl-communicator-config-path (get_nccl_options in megatron/core/parallel_state.py, 0.20). A
variable in the environment takes precedence over them (init.cc of NCCL 2.30.7).
"""

MEGATRON_GROUPS = (
    *("tp", "dp", "cp", "pp", "ep", "dp_cp", "tp_cp", "tp_dp", "tp_dp_cp", "ep_dp", "ep_tp", "tp_ep_pp", "tp_ep_mp"),
    *("tp_ep_gtp_remat_pp", "mp", "embd", "pos_embd", "hcp", "gtp_remat", "gtp_remat_dp", "gtp_remat_dp_cp"),
    *("expt_gtp_remat", "ep_gtp_remat_dp", "intra_dp_cp", "intra_ep_dp", "inter_ep_dp", "intra_dist_opt_instance"),
)
"""Names under which Megatron-LM 0.20 looks up options; it ignores every other (calls of get_nccl_options)."""

_MEASURE_GROUP = (
    "measure one group: `ncclt profile import --group N` keeps its messages, and `ncclt tune --through options` "
    "searches what its options carry"
)
FORMS = ("json", *_FORMS, "slurm-taskprolog", *TABLES)
"""The formats of a server; `export` is followed by its shell unless that is bash, and by `unset` where it removes."""

MARKS = {"recorded": "recorded", "simulated": "SIMULATED"}
"""Origins of results that a job gets only if it allows them -> the beginning of their remarks."""

_NOT_LAUNCHED = ("simulate", "replay")
"""Words of a study's launcher behind which nothing is launched, as in `ncclt.core.trial.NOT_LAUNCHED`."""

_LONGEST = 1023
"""Characters of a value that NCCL reads from nccl.conf (src/misc/param.cc:27-56, 2.30.7)."""

_ID, _COUNT, _SIZE, _CHANNELS = "[A-Za-z0-9._-]{1,64}", "[1-9][0-9]{0,5}", "[0-9]{1,19}", "[1-9]|[1-5][0-9]|6[0-4]"
_NUMBER = r"(?:null|-?[0-9]{1,24}(?:\.[0-9]{1,24})?(?:e[+-]?[0-9]{1,3})?)"
_DOCUMENT = {
    "schema": "1",
    "recommendation": f'"{_ID}"',
    "nodes": _COUNT,
    "gpus_per_node": _COUNT,
    "origin": '"(?:measured|recorded|simulated)"',
    "nccl_version": r'"[0-9]{1,3}(?:\.[0-9]{1,3}){1,2}"',
    "decision": '"(?:tuned|keep-default|undecided|untried)"',
    "speedup": _NUMBER,
    "interval": rf"null|\[{_NUMBER}, {_NUMBER}\]",
    "groups": rf"\[(?:\[{_COUNT}, (?:true|false)\](?:, (?=\[))?)*\]",
}
_OF_JOB = {
    "variant": '"(?:candidate|active|default)"',
    "reason": '"[A-Z_]{1,40}"',
    "rollout": '"[0-9a-f]{0,64}"',
    "ticket": '"[A-Za-z0-9._~-]{1,1000}"',
    "same_bits": r'\{"variables": "(?:yes|no|unknown)", "table": "(?:yes|no|unknown)"\}',
}
_FREE_TEXT = ("gpu", "fabric", "job")
_RULE = {
    "collective": f'"(?:{_COLLECTIVE})"',
    "min_bytes": _SIZE,
    "max_bytes": f"null|{_SIZE}",
    "group_size": f"0|{_COUNT}",
    "algorithm": f'null|"(?:{_ALGORITHM})"',
    "protocol": f'null|"(?:{_PROTOCOL})"',
    "channels": f"null|{_CHANNELS}",
    "spans_nodes": "null|true|false",
}
_ROW = re.compile(
    rf"(?:{'|'.join(_LISTS['NCCL_ALGO'])}),(?:{_SIZE},{_SIZE}|\[{_SIZE},(?:{_SIZE})?[)\]]),(?:{_ALGORITHM}),"
    rf"(?:{_PROTOCOL}),(?:-1|{_CHANNELS}),(?:-1|{_COUNT}),(?:-1|{_COUNT})(?:,-1,-1)?"
)
NEEDS = re.compile(r"^# needs (.*?)=(.*) in the environment$", re.MULTILINE)
_UNSAID = re.compile(r"[^A-Za-z0-9 .,:%+=/@_-]")
CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_SPELLED_OUT = str.maketrans(
    {
        "µ": "u",
        "μ": "u",
        "×": "x",
        "–": "-",
        "—": "-",
        "≥": "at least ",
        "≤": "at most ",
        "<": " below ",
        ">": " above ",
        ";": ",",
    }
)


class AnswerError(ValueError):
    """An answer that no job may get: one sentence, with the field or variable that is wrong.

    Attributes:
        hint: what to do where the answer is valid, but holds nothing for this format; empty = the answer is bad.
    """

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


def checked(variables: Mapping[str, str], nccl_version: str | None = None, *, ranks: int = 1) -> dict[str, str]:
    """Return variables if all of them may be set from outside: names and values that ncclt itself writes.

    Args:
        variables: name -> value.
        ranks: of the job, which the channels of a peer must reach in one round, 8 ranks each
            (`ncclt.nccl.p2p_chunk.serves_all_peers`).
        nccl_version: of the job; None = not known, so no list passes that confines every collective.

    Raises:
        AnswerError: one may not be set.
    """
    for name, value in variables.items():
        good = _is_list(name, value, nccl_version) if name in _LISTS else value in map(str, _NUMBERS.get(name, ()))
        if not good:
            version = f"NCCL {nccl_version}" if nccl_version else "an unspecified NCCL version"
            raise AnswerError(f"{one_line(name)[:60]}={one_line(value)[:60]} is never set by ncclt for {version}")
    sockets = [int(variables.get(f"NCCL_{name}", "0")) for name in ("SOCKET_NTHREADS", "NSOCKS_PERTHREAD")]
    if sockets[0] * sockets[1] > _MOST_SOCKETS:
        raise AnswerError(f"NCCL has at most {_MOST_SOCKETS} sockets, not {sockets[0]} x {sockets[1]}")
    peer, least = (int(variables.get(f"NCCL_{name}", "0")) for name in ("NCHANNELS_PER_NET_PEER", "MIN_P2P_NCHANNELS"))
    if (needed := peer * -(-ranks // 8)) > least:
        raise AnswerError(
            f"NCCL_NCHANNELS_PER_NET_PEER={peer} may hang without NCCL_MIN_P2P_NCHANNELS of {needed} or more"
        )
    return dict(variables)


def _is_list(name: str, value: str, nccl_version: str | None) -> bool:
    """Return True if NCCL_ALGO or NCCL_PROTO leaves every call of every collective a choice, as that NCCL reads it.

    Neither `^` nor LL128 is ever accepted: both make NCCL use LL128 where it corrupts data.
    """
    if not isinstance(value, str) or len(value) > _LONGEST:
        return False
    numbers = re.match(r"v?([0-9]{1,4})\.([0-9]{1,4})|([0-9]{1,2})([0-9]{2})[0-9]{2}$", nccl_version or "")
    version = tuple(int(number) for number in numbers.groups() if number) if numbers else None
    entries = value.split(";")
    if version and version < _NAMED_SINCE:
        entries = [f"allreduce:{value}"]  # one list for all; the other collectives keep Ring whatever it says
    elif entries[0] == _BASE[name]:
        del entries[0]
    elif version and version >= _BASE_SINCE:
        return False  # without the base, the collectives that are not named have nothing
    lists = dict(entry.partition(":")[::2] for entry in entries)
    for function, listed in lists.items():
        always, sometimes = (set(words.split()) for words in _LISTS[name].get(function, ("", "")))
        words_of_value = set(listed.split(","))
        if not words_of_value & always or not words_of_value <= always | sometimes:
            return False
    return len(lists) == len(entries)


def checked_document(document: Any, nccl_version: str | None = None) -> dict[str, Any]:
    """Return the known fields of an answer in `json`, with every field that a job depends on checked.

    Args:
        document: as decoded.
        nccl_version: of the job; None = not known.

    Raises:
        AnswerError: a field holds what ncclt never writes.
        LookupError, TypeError, AttributeError: it has another shape.
    """
    # Written only for groups that are placed on the nodes in a certain way.
    document = {**document, "table": [{"spans_nodes": None} | rule for rule in document["table"]]}
    # Written only for an answer to a job, not for an environment that is rendered for all of them.
    of_job = {name: pattern for name, pattern in _OF_JOB.items() if name in document}
    for fields, patterns in [(document, {**_DOCUMENT, **of_job}), *((rule, _RULE) for rule in document["table"])]:
        for name, pattern in patterns.items():
            if not re.fullmatch(pattern, json.dumps(fields[name])):
                raise AnswerError(f"{name} is {one_line(fields[name])[:60]}, which ncclt never writes")
    if document["origin"] == "measured" and document["launcher"] in _NOT_LAUNCHED:
        raise AnswerError(f"origin is measured with the launcher {document['launcher']}, which launches nothing")
    parameters = document["table_parameters"]
    if any(type(value) is not int for value in parameters.values()):
        raise AnswerError("a parameter of the table is not a number")
    ranks = document["nodes"] * document["gpus_per_node"]
    checked({f"NCCL_{name}": str(value) for name, value in parameters.items()}, nccl_version, ranks=ranks)
    return {
        **{name: document[name] for name in (*_DOCUMENT, *of_job)},
        **{name: one_line(document[name]) for name in ("cluster", "model", "launcher")},
        **{name: one_line(document[name]) for name in _FREE_TEXT if name in document},
        **({"site_variables": _one_lines(document["site_variables"])} if "site_variables" in document else {}),
        "lost": [one_line(sentence) for sentence in document["lost"]],
        "remarks": [one_line(sentence) for sentence in document["remarks"]],
        "variables": checked(document["variables"], nccl_version, ranks=ranks),
        "table": [
            {name: rule[name] for name in _RULE if name != "spans_nodes" or rule[name] is not None}
            for rule in document["table"]
        ],
        "table_parameters": parameters,
        "table_verdict": document.get("table_verdict"),
    }


def _one_lines(variables: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables of the site that a measurement had; they are compared with the job's and never set."""
    return {one_line(name): one_line(value) for name, value in variables.items()}


def written(text: str, form: str, asked: Mapping[str, Any]) -> str:
    """Return the text for a job, written from a checked answer.

    Args:
        text: of a table if `form` is one of `TABLES`, else `json`.
        form: one of `FORMS`.
        asked: cluster, model, nodes, gpus_per_node and nccl_version of the request; None is not compared. allow: which
            of `MARKS` the job may be given besides what was measured for it.

    Raises:
        AnswerError: it is for another job, has a mark that is not allowed, contains what no job may get, or nothing
            proven.
        LookupError, TypeError, AttributeError, ValueError, RecursionError: it has another shape.
    """
    if form in TABLES:
        table = _table(text, asked.get("nccl_version"))
        _require_allowed({mark for mark, word in MARKS.items() if f"\n# {word}" in f"\n{table}"}, asked)
        return table
    answer = json.loads(text)
    document = checked_document(answer, asked.get("nccl_version"))
    for name in ("cluster", "model", "nodes", "gpus_per_node"):
        if asked.get(name) not in (None, answer[name]):
            raise AnswerError(f"it is for {name} {one_line(answer[name])[:60]}, asked for {asked[name]}")
    _require_allowed(marks_of(document), asked)
    if form == "json":
        return json.dumps(document, indent=2) + "\n"
    if document["decision"] == "undecided":
        hint = "keeping the NCCL default; run the same `ncclt tune` with more --blocks to continue"
        raise AnswerError(f"undecided: {' '.join(document['remarks'][:1])}", hint=hint)
    return write(document, form, asked.get("nccl_version"), group=asked.get("group") or "")


def marks_of(document: Mapping[str, Any]) -> set[str]:
    """Return the `MARKS` of a result; none if it was measured there."""
    return MARKS.keys() & {document["origin"]}


def _require_allowed(marks: set[str], asked: Mapping[str, Any]) -> None:
    for mark in sorted(marks - set(asked.get("allow") or ())):
        raise AnswerError(f"it is {MARKS[mark]}, which this job does not allow")


def form_of(format: str, shell: str, unset: bool) -> str:
    """Return the name in `FORMS` of a format with its options; another text where the format does not have them."""
    return " ".join([format, *([shell] if shell != "bash" else []), *(["unset"] if unset else [])])


def require_group(format: str, group: str) -> None:
    """Refuse a group for a format that names none, and a format that names its group without a known one.

    Raises:
        AnswerError: one of both, with a hint.
    """
    if format != "megatron-yaml" and group:
        raise AnswerError("--group needs --format megatron-yaml", hint=f"leave it out for {format}")
    if format == "megatron-yaml" and group not in MEGATRON_GROUPS:
        why = f"Megatron reads no options for a group {one_line(group)[:60]!r}" if group else "no --group for Megatron"
        raise AnswerError(why, hint=f"it is one of {', '.join(MEGATRON_GROUPS)}")


def group_label(ranks: int, spans_nodes: bool) -> str:
    """Return one kind of process group as text: `8 ranks inside a node`."""
    return f"{ranks} ranks {'across nodes' if spans_nodes else 'inside a node'}"


def _group_options(document: Mapping[str, Any], variables: Mapping[str, str]) -> dict[str, str]:
    """Return the options by which one process group gets what variables set for all; see `_GROUP_OPTIONS`.

    Raises:
        AnswerError: several kinds of groups were measured together, or options cannot carry all that was validated.
    """
    groups = [group_label(*group) for group in document["groups"]]
    if len(groups) != 1:
        together = f"groups of {' and of '.join(groups)} were measured together" if groups else "its groups are unknown"
        raise AnswerError(f"no process group was measured by itself: {together}", hint=_MEASURE_GROUP)
    lost = [f"{name}={value}" for name, value in variables.items() if name not in _GROUP_OPTIONS]
    if document["table"] and not variables:
        lost = [f"{rule['collective']} {rule['algorithm']}/{rule['protocol']}" for rule in document["table"]]
    if lost:
        listed = ", ".join(dict.fromkeys(lost))
        raise AnswerError(f"options of a process group cannot carry what was validated: {listed}", hint=_MEASURE_GROUP)
    return {_GROUP_OPTIONS[name]: value for name, value in variables.items()}


def write(
    document: Mapping[str, Any], form: str, nccl_version: str | None, uid: int | None = None, group: str = ""
) -> str:
    """Return the text that sets the variables of a document, whatever its names and remarks contain.

    Args:
        document: as of the format `json`.
        form: one of `FORMS` that is neither `json` nor a table.
        nccl_version: of the job; None = not known.
        uid: `slurm-taskprolog` only: for jobs of this user alone; None = of any.
        group: `megatron-yaml` only: one of `MEGATRON_GROUPS`.

    Raises:
        AnswerError: it sets what no job may get, is a `slurm-taskprolog` that would set nothing or whose model holds a
            control character, or is for a process group and was not measured on one.
    """
    pairs = checked(document["variables"], nccl_version, ranks=document["nodes"] * document["gpus_per_node"])
    require_group(form, group)
    if form == "slurm-taskprolog" and not pairs:
        why, hint = " ".join(document["remarks"][:1]), "use --policy-dir to deliver the table where one is validated"
        raise AnswerError(f"a TaskProlog would set nothing: {why}", hint=hint)
    label = token(document["recommendation"])
    remarks = comment_lines(document["remarks"])
    if form in GROUP_FORMS:
        pairs = _group_options(document, pairs)
        remarks += comment_lines(
            [
                f"For process groups of {group_label(*document['groups'][0])} alone",
                "NCCL_MIN_CTAS and NCCL_MAX_CTAS in the environment take precedence: leave them unset",
            ]
        )
    elif form != "nccl-conf":  # NCCL reads it itself, so with its own names only
        pairs["NCCLT_RECOMMENDATION"] = label
        pairs.update((f"NCCLT_{mark.upper()}", "1") for mark in sorted(marks_of(document)))
    if form == "slurm-taskprolog":
        return task_prolog(document, pairs, remarks, uid=uid)
    pair, separator, text = _FORMS[form]
    return text.format(
        pairs=separator.join(pair.format(name, value, shlex.quote(value)) for name, value in pairs.items()),
        remarks="".join(f"{line}\n" for line in remarks),
        names=",".join(pairs),
        object=object_name(*(document[name] for name in ("model", "cluster", "nodes", "gpus_per_node"))),
        content=short_hash(json.dumps(pairs, sort_keys=True)),
        label=label[:63].strip("._-"),
        group=group,
    )


def task_prolog(
    job: Mapping[str, Any],
    pairs: Mapping[str, str],
    remarks: Iterable[str],
    *,
    uid: int | None = None,
    inserted: Mapping[str, str] = _PROLOG_PARTS,
) -> str:
    """Return a script whose lines `export NAME=value` Slurm hands to every task of a step, for one kind of job alone.

    What Slurm sets was looked up in a Slurm 22.05 (tests/integration/test_slurm_prolog.py): SLURM_JOB_UID,
    SLURM_STEP_NUM_NODES and SLURM_STEP_TASKS_PER_NODE always, SLURM_GPUS_ON_NODE where GPUs were asked for; the job's
    comment never. Without GPUs asked for, one task per GPU says how many there are: "4(x2)" are 4 on each of 2 nodes.

    A task whose prolog fails is cancelled, and a prolog that waits holds up the job, so it starts no program and opens
    no connection. It asks no server: each task would ask for itself, and NCCL hangs where ranks get different answers.

    Args:
        job: the model that the job's NCCLT_MODEL names, nodes and gpus_per_node of the step.
        pairs: name -> value, any text.
        remarks: lines that begin with #.
        uid: of the job's user; None = of any.
        inserted: texts of the places promise, condition, before and after in the script, as sh.

    Raises:
        AnswerError: a value or the model holds a control character.
    """
    for name, text in [("NCCLT_MODEL", job["model"]), *pairs.items()]:
        if CONTROL.search(text):
            raise AnswerError(f"{name} holds a control character")
    return _TASK_PROLOG.format(
        remarks="".join(f"{line}\n" for line in remarks),
        user="of any user" if uid is None else f"of user {uid}",
        nodes=job["nodes"],
        gpus=job["gpus_per_node"],
        model=shlex.quote(job["model"]),
        owned="" if uid is None else f'  && [ "${{SLURM_JOB_UID:-}}" = {uid} ] \\\n',
        exports=" \\\n".join(f"    {shlex.quote(f'export {name}={value}')}" for name, value in pairs.items()),
        **inserted,
    )


def _table(text: str, nccl_version: str | None) -> str:
    lines = []
    for line in text.split("\n")[:-1]:
        if _ROW.fullmatch(line) or NEEDS.fullmatch(line):
            lines.append(line)
        elif line.startswith("# "):
            lines += comment_lines([line])
        else:
            raise AnswerError(f"no row of a table: {one_line(line)[:60]}")
    if not lines or text[-1] != "\n":
        raise AnswerError("a table that is cut off")
    for name, value in NEEDS.findall("\n".join(lines)):
        checked({name: value}, nccl_version)
    return "".join(f"{line}\n" for line in lines)


def comment_lines(sentences: Iterable[str]) -> list[str]:
    """Return `# ` lines of at most 200 characters for some sentences, without any character special to a shell.

    The text may go through `eval`, even an unquoted one, and an interactive zsh has no comments. NCCL's example tuner
    cuts lines at 255 characters and would read the rest as a row (plugins/tuner/example/plugin.c of 2.30.7).
    """
    plain = [_UNSAID.sub("", sentence.translate(_SPELLED_OUT).replace(" (", ", ")) for sentence in sentences]
    wrapped = [textwrap.wrap(" ".join(sentence.split()), 198, break_on_hyphens=False) for sentence in plain]
    return [f"# {line}" for lines in wrapped for line in lines]


def object_name(model: str, cluster: str, nodes: int, gpus_per_node: int) -> str:
    """Return a DNS-1123 subdomain that differs where workload, cluster or size differ: `ncclt.bert.leonardo.2x4`."""
    names = [model, cluster]
    parts = [re.sub(r"[^a-z0-9-]+", "-", text.lower())[:63].strip("-") or "x" for text in names]
    # What had to be changed or cut could otherwise collide with another name.
    changed = [] if parts == names else [short_hash(json.dumps(names))]
    return ".".join(["ncclt", *parts, f"{nodes}x{gpus_per_node}", *changed])


def token(text: str) -> str:
    """Return a text as one word that needs no quotes anywhere."""
    return re.sub("[^A-Za-z0-9._-]", "_", text)


def short_hash(text: str) -> str:
    """Return 12 characters that differ where texts differ."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def one_line(text: object) -> str:
    """Return printable text without line breaks, cut to 1000 characters, for a terminal."""
    return " ".join("".join(c if c.isprintable() else " " for c in str(text)[:1000]).split())
