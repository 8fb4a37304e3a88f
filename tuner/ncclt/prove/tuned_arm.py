"""The tuned arm of `ncclt verify`: the training with its validated policy, as `ncclt run` would deliver it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from ncclt.core.recommendation import Decision, Recommendation
from ncclt.core.trial import TimesOrigin
from ncclt.core.verification import sorted_variables
from ncclt.deliver.answer import answer_from_recommendation
from ncclt.deliver.job_info import JobInfo, read_site, read_variables, starts_other_nodes
from ncclt.deliver.job_plan import JobPlan, Means, plan_job
from ncclt.deliver.node_files import place_plugin, table_path, write_table
from ncclt.deliver.render.delivery import headline
from ncclt.errors import NoRecommendationError, UsageError, reason
from ncclt.launch.launcher import Launcher
from ncclt.nccl.tuner_plugin import find as find_plugin
from ncclt.nccl.tuner_plugin.compact_table import POLICY_VARIABLE, table_environment
from ncclt.nccl.variables import site_variables, split_variables
from ncclt.prove.comparison import Comparison
from ncclt.prove.step_times import VerifyRequest, open_mpi_sides


def require_measurable(recommendation: Recommendation, argv: Sequence[str], *, gpus_visible: bool) -> None:
    """Refuse to verify recorded or simulated results where only this machine's CPUs would be timed.

    Args:
        argv: the training's command; one that starts processes on other nodes may reach GPUs.

    Raises:
        NoRecommendationError: it proves a gain, about which step times of this machine say nothing.
    """
    if not has_gain(recommendation) or not is_unmeasured(recommendation) or gpus_visible or starts_other_nodes(argv):
        return
    valid = recommendation.fingerprint
    source = "replayed from a recording" if recommendation.origin is TimesOrigin.RECORDED else "SIMULATED"
    raise NoRecommendationError(
        f"{recommendation.model} on {recommendation.cluster} cannot be verified here: its times are {source}, and no "
        "GPU is visible, so the training would not use NCCL",
        hint=f"on {valid.nodes} x {valid.gpus_per_node} real GPUs, `ncclt autotune -- COMMAND` measures and "
        "validates a policy and compares step times; here, compare two environments with --env and --base",
    )


def has_gain(recommendation: Recommendation) -> bool:
    """Check that a gain of the table or of the variables is validated."""
    deliveries = (recommendation.table, recommendation.variables)
    return any(delivery.verdict.decision is Decision.TUNED for delivery in deliveries if delivery)


def is_unmeasured(recommendation: Recommendation) -> bool:
    """Check that the times behind a recommendation come from a model or a recording."""
    return recommendation.origin is not TimesOrigin.MEASURED


def plan_tuned_arm(
    recommendation: Recommendation,
    argv: Sequence[str],
    *,
    environ: Mapping[str, str],
    plugin: Path | None,
    folder: Path,
) -> JobPlan:
    """Plan the tuned arm as `ncclt run` would start it; nothing is written yet.

    Args:
        argv: the training's command.
        plugin: the compiled tuner plugin; None = missing.
        folder: of a table that is too long for the environment; every rank can read it.

    Raises:
        NoRecommendationError: nothing is proven, or it cannot be delivered to this command.
        UsageError: only the table is proven, and the plugin is missing.
    """
    answer = answer_from_recommendation(recommendation)
    if not (answer.table or answer.table_variables or answer.variables):
        verdict = headline(recommendation, recommendation.table)
        raise NoRecommendationError(
            f"there is nothing to verify: {verdict}{f' ({recommendation.label})' if recommendation.label else ''}",
            hint="compare two environments with --env NAME=VALUE and --base NAME=VALUE, or two commands with --against",
        )
    if plugin is None and answer.table and not answer.variables:
        raise UsageError(
            "only the per-size table is validated, and it needs the tuner plugin",
            hint="`ncclt admin plugin build` makes it",
        )
    job = JobInfo(argv=argv, environ=environ, variables=read_variables(argv, environ), site=read_site(argv, environ))
    table = table_environment(answer.table, table_path(folder, answer.table))
    plan = plan_job(answer, job, Means(plugin=plugin, table=table, hook=None, shared=True))
    if plan.form is None:
        raise NoRecommendationError(f"there is nothing to verify: {plan.notes[0]}", hint="see `ncclt run --dry-run`")
    return plan


@contextmanager
def prepare_comparison(
    recommendation: Recommendation,
    argv: tuple[str, ...],
    *,
    how: Comparison,
    launcher: Launcher,
    environ: Mapping[str, str],
    planned: bool = False,
) -> Iterator[VerifyRequest]:
    """Prepare the comparison of a training as it runs today with its validated policy.

    The baseline has the user's own tuning, which the policy replaces; both sides have the variables of the site.

    For that time, table and plugin are in a new folder within the folder that all ranks share.

    Args:
        argv: the training's command.

    Raises:
        NoRecommendationError, UsageError: as for `plan_tuned_arm`, or the folder cannot be written to.
    """
    removed = launcher.plan(argv, variables={}, timeout_s=how.timeout_s).unset_env
    inherited = {name: value for name, value in environ.items() if name not in removed}
    today = split_variables(environ).tuning
    plugin, folder = find_plugin(environ), how.directory.resolve() / ".ncclt-table"
    with ExitStack() as stack:
        if not planned:
            try:
                temporary = TemporaryDirectory(prefix=".ncclt-table-", dir=folder.parent, ignore_cleanup_errors=True)
            except OSError as error:
                raise UsageError(
                    f"cannot write to {folder.parent}: {reason(error)}",
                    hint="name a folder that all ranks share with --dir",
                ) from error
            folder = Path(stack.enter_context(temporary))
            plugin = plugin and place_plugin(folder, plugin)
        plan = plan_tuned_arm(recommendation, argv, environ=inherited, plugin=plugin, folder=folder)
        variables = dict(plan.set_env)
        if POLICY_VARIABLE in variables and plan.answer is not None and not planned:
            write_table(Path(variables[POLICY_VARIABLE]), plan.answer.table)
        yield VerifyRequest(
            argv=argv,
            base_env=sorted_variables(today),
            tuned_env=plan.set_env,
            how=how,
            cluster=recommendation.cluster,
            model=recommendation.model,
            recommendation=recommendation.id,
            removed_env=tuple(name for name in removed if name not in today),
            site_variables=site_variables(environ),
            notes=plan.notes,
            open_mpi=open_mpi_sides(argv, (), environ=environ),
        )
