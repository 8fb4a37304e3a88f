"""Plan the start of a job: variables, or a table for the plugin with the variables that it needs, or nothing and why.

Three rules. What was measured together is delivered together or not at all: a mixture with the user's own choice was
never measured, and may leave a collective without an algorithm. A job that differs from the measured one in what
changes the times gets nothing, unless the user accepts that difference by name. And a table that some ranks have and
others lack hangs a job or corrupts its data: it is used only where all ranks agree on it, or every node can read it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath

from ncclt.client.trust import open_trusted
from ncclt.core.attestation import Form
from ncclt.core.nccl_version import NcclVersion
from ncclt.deliver.agree import AGREEMENT_VARIABLE, agreement_environment
from ncclt.deliver.answer import Answer
from ncclt.deliver.attest import CHOICE_VARIABLES
from ncclt.deliver.job_info import NO_OTHER_TUNER, OF_COMMAND, JobInfo, Sourced, is_other_gpu, read_command_variables
from ncclt.errors import InputError, UsageError
from ncclt.launch.argv import NODE_LAUNCHERS
from ncclt.nccl.tuner_plugin import DELEGATE_VARIABLE, find
from ncclt.nccl.tuner_plugin.compact_table import POLICY_VARIABLE, TABLE_VARIABLE
from ncclt.nccl.variables import OF_ENVIRONMENT, may_differ_by_node

GPU, GPU_MISSING, FABRIC = "GPU", "NO_GPU", "FABRIC"
"""Names of differences that no variable shows, for --allow-difference."""

TICKET_VARIABLE = "NCCLT_TICKET"
DIFFERENCE_VARIABLE = "NCCLT_DIFFERENCE"
"""Marks a job that runs with a difference that the user accepted: names, joined by +."""

RIVALS_OF_TABLE = ("NCCLT_POLICY_SHM", TABLE_VARIABLE, POLICY_VARIABLE)
"""Variables that name another table (plugin/named_table.c)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPlan:
    """Start of a job: its environment, its command, and the reasons.

    Attributes:
        answer: what it follows; None = there is none.
        form: how the policy is delivered; None = it is not.
        set_env, unset_env: changes to its environment.
        notes: for the user, one sentence each.
        is_common: the other processes of the job start with the same, so this one starts with it or not at all.
        argv: the command; empty = unchanged.
        environ: its whole environment; None = that of this process, untouched.
        run: starts the command as a child and returns its exit code; None = this process becomes the command.
    """

    answer: Answer | None = None
    form: Form | None = None
    set_env: tuple[tuple[str, str], ...] = ()
    unset_env: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    is_common: bool = False
    argv: Sequence[str] = ()
    environ: Mapping[str, str] | None = None
    run: Callable[[], int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """Means by which a job can get what was measured, and what the user accepts.

    Attributes:
        plugin: the compiled plugin; None = missing or not wanted.
        table: the variables of `table_environment`, by which the job gets the table of the answer.
        hook: folder of the hook by which the ranks agree, which need not exist yet; None = they do not.
        shared: every node can read the plugin and a table in a file, according to the user.
        override: replace the user's own variables.
        allowed: differences from the measured job that the user accepts.
    """

    plugin: Path | None
    table: Mapping[str, str]
    hook: Path | None
    shared: bool
    override: bool = False
    allowed: Collection[str] = ()


def plan_job(answer: Answer, job: JobInfo, means: Means) -> JobPlan:
    """Plan what a job is started with; nothing is written yet.

    Raises:
        UsageError: NCCLT_AGREEMENT has a value that the plugin does not know, or the hook's folder cannot be named.
    """
    agreement = _plan_agreement(job, means.hook)
    form, notes = _choose_form(answer, job, means, agrees=bool(agreement))
    if form is None:
        why = f" ({answer.why_nothing})" if answer.why_nothing else ""
        ticket = ((TICKET_VARIABLE, answer.ticket),) if answer.ticket else ()
        return JobPlan(answer=answer, set_env=ticket, notes=(*notes, f"Nothing set{why}"))
    delivered = dict(answer.table_variables if form is Form.TABLE else answer.variables)
    if form is Form.TABLE:
        delivered |= {"NCCL_TUNER_PLUGIN": str(means.plugin), **means.table}
    differences = _find_differences(delivered, answer, job, form)
    accepted = tuple(sorted({*means.allowed} & {*differences} - {*delivered, *CHOICE_VARIABLES}))
    refused = {name: difference for name, difference in differences.items() if name not in accepted}
    own = [name for name in refused if name in job.environ and refused[name].source == OF_ENVIRONMENT]
    if means.override:
        refused = {name: difference for name, difference in refused.items() if name not in own}
    if refused:
        return JobPlan(answer=answer, notes=(*notes, _refuse(refused, delivered)))
    own_tuner = job.environ["NCCL_TUNER_PLUGIN"] if "NCCL_TUNER_PLUGIN" in own else ""
    if PurePath(own_tuner).name not in NO_OTHER_TUNER:
        # It still answers what the table does not decide.
        delivered[DELEGATE_VARIABLE] = job.environ.get(DELEGATE_VARIABLE, own_tuner)
    if own:
        notes.append(f"--override replaces your {', '.join(f'{name}={job.environ[name]}' for name in own)}")
    if accepted:
        listed = (f"{name}: {differences[name].measured} measured, {differences[name].value} here" for name in accepted)
        notes.append(f"Accepted differences from the measured job: {'; '.join(listed)}")
        delivered[DIFFERENCE_VARIABLE] = "+".join(accepted)
    if answer.simulated:
        place = answer.cluster or "a cluster"
        notes.append(f"SIMULATED: {answer.model or 'it'} was tuned on a model of {place}; nothing was measured")
        delivered["NCCLT_SIMULATED"] = "1"
    elif answer.recorded:
        notes.append(f"recorded: {answer.model or 'it'} was tuned on times recorded elsewhere; nothing was launched")
        delivered["NCCLT_RECORDED"] = "1"
    delivered["NCCLT_RECOMMENDATION"] = answer.recommendation
    if answer.ticket:
        delivered[TICKET_VARIABLE] = answer.ticket
    if form is Form.TABLE and agreement:
        delivered |= agreement
        if not any(PurePath(word).name.startswith(("python", *NODE_LAUNCHERS)) for word in job.argv):
            notes.append(
                "The table takes effect once all ranks agree at PyTorch's init_process_group; without PyTorch set "
                f"{AGREEMENT_VARIABLE}=none"
            )
    return JobPlan(
        answer=answer,
        set_env=tuple(sorted(delivered.items())),
        unset_env=tuple(name for name in own if name not in delivered),
        form=form,
        notes=tuple(notes),
    )


def _choose_form(answer: Answer, job: JobInfo, means: Means, *, agrees: bool) -> tuple[Form | None, list[str]]:
    """Return the form of the delivery, None = there is nothing to deliver, and notes on why it is not the table."""
    why = ""
    if answer.table and means.plugin is None:
        why = "tuner plugin not found (build it with `ncclt admin plugin build`) or disabled"
    elif answer.table:
        why = _find_lacking_rank(answer, job, means, agrees=agrees)
    notes = [f"Table skipped: {why}"] if why else []
    if answer.table and not why:
        return Form.TABLE, notes
    return (Form.VARIABLES if answer.variables else None), notes


def find_plugin() -> tuple[Path | None, str]:
    """Return the plugin if NCCL can load it here and no other user can change it, else None and why.

    It is loaded into this process through its checked descriptor, as each rank will load it by its path.
    """
    path = find()
    if path is None:
        return None, ""
    from ncclt.nccl.tuner_plugin.loaded import LoadedPlugin

    try:
        with open_trusted(path) as descriptor:
            LoadedPlugin(Path(f"/proc/self/fd/{descriptor}"))
    except InputError as error:
        return None, f"the plugin {path} cannot be loaded: {error.message}"
    except OSError as error:
        return None, f"the plugin {path} was skipped: {error}"
    return path, ""


def _plan_agreement(job: JobInfo, hook: Path | None) -> dict[str, str]:
    """Return the variables by which the ranks agree before they use a table; empty = the user turned that off."""
    value = {**job.environ, **read_command_variables(job.argv)}.get(AGREEMENT_VARIABLE, "")
    if value not in ("", "hook", "none"):
        raise UsageError(f"{AGREEMENT_VARIABLE} is {value!r}", hint="`none` is for programs without PyTorch")
    return {} if hook is None or value == "none" else agreement_environment(hook, job.environ)


def _find_lacking_rank(answer: Answer, job: JobInfo, means: Means, *, agrees: bool) -> str:
    """Return the reason why some rank may lack the table without the others noticing; empty = none does."""
    path = read_command_variables(job.argv).get("PYTHONPATH", "$PYTHONPATH")
    if agrees and "$PYTHONPATH" not in path and "${PYTHONPATH" not in path:
        return "the command itself sets PYTHONPATH and hides the agreement hook; set it before ncclt"
    if means.shared or (agrees and TABLE_VARIABLE in means.table):
        return ""
    hint = "name a folder that all nodes share with --policy-dir"
    if job.starts_elsewhere:
        return f"{PurePath(job.argv[0]).name} starts processes on nodes that may not see it; {hint}"
    if answer.nodes > 1 and not job.is_started_on_every_node:
        return f"the launcher of the other {answer.nodes - 1} nodes is unknown; {hint}"
    return ""


# --- differences from the measured job ---

_NOT_SET, _OF_SITE = "not set", "a variable of the site"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Difference:
    """The measured value, the value here, and what sets it."""

    measured: str
    value: str
    source: str


def _find_differences(delivered: Mapping[str, str], answer: Answer, job: JobInfo, form: Form) -> dict[str, _Difference]:
    rivals = [*delivered, *CHOICE_VARIABLES, *(RIVALS_OF_TABLE if form is Form.TABLE else ())]
    in_effect: dict[str, Sourced] = dict(job.variables)
    for source, variables in ((OF_ENVIRONMENT, job.environ), (OF_COMMAND, read_command_variables(job.argv))):
        in_effect |= {name: Sourced(variables[name], source) for name in rivals if name in variables}
    site = dict(answer.site_variables or ())
    differences = {
        name: _Difference(measured=delivered.get(name, _NOT_SET), value=str(variable.value), source=variable.source)
        for name, variable in sorted(in_effect.items())
        if variable.value != delivered.get(name)
        # A configuration file of the site, which the measurement had too, is no difference.
        and (name in rivals or variable.value != site.get(name))
    }
    if answer.site_variables is not None:
        compared = {*site, *job.site} - {*differences, *delivered}
        if not job.decides_alone:  # or one node would start with settings that another refuses
            compared = {name for name in compared if not may_differ_by_node(name)}
        for name in sorted(compared):
            before, now = site.get(name, _NOT_SET), job.site.get(name, _NOT_SET)
            if before != now:
                differences[name] = _Difference(measured=before, value=now, source=_OF_SITE)
    machine = "this machine"
    if job.gpus is not None and is_other_gpu(answer.gpu, job.gpus):
        differences[GPU] = _Difference(measured=answer.gpu, value=", ".join(job.gpus), source=machine)
    has_fabric = answer.nodes > 1 and answer.fabric in ("infiniband", "roce")
    if has_fabric and job.fabrics and answer.fabric not in job.fabrics:
        differences[FABRIC] = _Difference(measured=answer.fabric, value=", ".join(job.fabrics), source=machine)
    if job.gpus == () and not job.starts_elsewhere:
        differences[GPU_MISSING] = _Difference(measured=answer.gpu or "a GPU", value="no GPU", source=machine)
    return differences


def _refuse(differences: Mapping[str, _Difference], delivered: Mapping[str, str]) -> str:
    sources = {difference.source for difference in differences.values()}
    listed = ", ".join(f"{name}={difference.value}" for name, difference in differences.items())
    together = "the settings were measured only together"
    changing = [name for name in differences if name not in delivered and name not in CHOICE_VARIABLES]
    accept = f"; --allow-difference {changing[0]} accepts it" if len(changing) == len(differences) == 1 else ""
    if sources == {OF_COMMAND}:
        return f"Nothing set: the command itself sets {listed}, and {together} (remove it from the command{accept})"
    if sources == {OF_ENVIRONMENT}:
        return f"Nothing set: your {listed} is kept, and {together} (--override replaces yours{accept})"
    return (
        f"Nothing set: this job differs from the measured one: {_list_differences(differences)} "
        "(remove the difference, or accept it with --allow-difference NAME)"
    )


def _list_differences(differences: Mapping[str, _Difference]) -> str:
    return "; ".join(
        f"{name}: {difference.measured} measured, {difference.value} here ({difference.source})"
        for name, difference in differences.items()
    )


def compare_with_measured(answer: Answer, job: JobInfo, *, allowed: Collection[str]) -> tuple[str, str]:
    """Compare a job that gets the variables of an answer with the measured one.

    Args:
        answer: its variables replace those of the job.

    Returns:
        The differences that are not accepted and those that are, each as text; empty = none.
    """
    delivered = dict(answer.variables)
    environ = {name: value for name, value in job.environ.items() if name not in delivered}
    variables = {name: job.variables[name] for name in job.variables if name in environ or name not in job.environ}
    after = replace(job, environ=environ, variables=variables)
    differences = _find_differences(delivered, answer, after, Form.VARIABLES)
    accepted = {name: differences[name] for name in differences if name in allowed and name not in CHOICE_VARIABLES}
    refused = {name: difference for name, difference in differences.items() if name not in accepted}
    return _list_differences(refused), _list_differences(accepted)


def describe_size_difference(answer: Answer, job: JobInfo, options: Mapping[str, object]) -> str:
    """Return the difference in size or NCCL from the job that a table was measured for; empty = none.

    Args:
        answer: of a file, which no request was matched with.
        options: nodes, gpus_per_node and nccl_version of the command line, or None.
    """
    shape = {**options, **{part: fact.value for part, fact in job.shape.items() if fact.binding}}
    nodes, gpus, version = shape["nodes"], shape["gpus_per_node"], shape["nccl_version"]
    parts = (
        ("NCCL {}", answer.nccl_version, version and str(NcclVersion.parse(str(version)))),
        ("{} nodes", answer.nodes, nodes),
        ("{} ranks", answer.ranks, nodes and gpus and int(str(nodes)) * int(str(gpus))),
    )
    differs = [(words.format(had), words.format(has)) for words, had, has in parts if had and has and had != has]
    if not differs:
        return ""
    had, has = (", ".join(side) for side in zip(*differs, strict=True))
    return f"the table was measured with {had}, and this job has {has}"


def effective_variables(plan: JobPlan, job: JobInfo) -> dict[str, str]:
    """Return every variable that decides NCCL's choices in a process, for comparison with other nodes.

    Of plugin and table only the file names count: their folders may be mounted elsewhere, and a table is named by a
    hash of its content. The path of the hook does not: the ranks compare what it loads.
    """
    after = {name: value for name, value in job.environ.items() if name not in plan.unset_env} | dict(plan.set_env)
    # The user's own tuner plugin decides too, and so does its table.
    tables = (*RIVALS_OF_TABLE, "NCCL_TUNER_CONFIG_FILE")
    table = next((name for name in tables if after.get(name)), tables[0])
    by_name = ("NCCL_TUNER_PLUGIN", POLICY_VARIABLE, "NCCL_TUNER_CONFIG_FILE", DELEGATE_VARIABLE)
    added = {name for name, _ in plan.set_env} - {TICKET_VARIABLE, "PYTHONPATH"}  # each process has its own ticket
    names = {*CHOICE_VARIABLES, AGREEMENT_VARIABLE, DELEGATE_VARIABLE, "NCCL_TUNER_PLUGIN", table, *added}
    deciding: dict[str, str] = {}
    if plan.form is not None:  # without a form, nothing on our side depends on them
        own = {name: str(variable.value) for name, variable in job.variables.items() if name not in plan.unset_env}
        deciding = {name: value for name, value in own.items() if not name.startswith("NCCL_TUNER_")}
    deciding |= {name: after[name] for name in names if name in after}
    return {name: PurePath(value).name if name in by_name else value for name, value in sorted(deciding.items())}
