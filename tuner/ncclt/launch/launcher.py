"""The port behind which commands are started, and the plan that says beforehand exactly what will be started."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypedDict, Unpack
from typing import Protocol as Port

from ncclt.errors import NodesLostError, NotStartedError, UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPlan:
    """One launch, decided but not started.

    Attributes:
        argv: program and arguments; never given to a shell of this machine.
        set_env: variables added to the environment of the launch, sorted.
        unset_env: names of variables removed from it, sorted.
        files: (name, text) of what the launch reads besides its arguments, for example a manifest or a script; `run`
            writes them into a private folder, whose path replaces `FILES` in `argv` and `clean_up`.
        clean_up: commands that end what the launch may have left on other machines, run one after another unless it
            ended by itself with success, also after the death of ncclt; each exits with 0 when nothing runs there any
            more, and otherwise prints what does on its last line.
        cwd: working folder; None = the current one.
        timeout_s: after this, everything that was started is ended.
    """

    argv: tuple[str, ...]
    set_env: tuple[tuple[str, str], ...] = ()
    unset_env: tuple[str, ...] = ()
    files: tuple[tuple[str, str], ...] = ()
    clean_up: tuple[tuple[str, ...], ...] = ()
    cwd: Path | None = None
    timeout_s: float


PORT = "{ncclt-port}"
"""Placeholder in arguments, variables and files of a plan for the port on which ranks meet, new for every run."""

FILES = "{files}"
"""Placeholder in the arguments of a plan for the folder of its files, which is made when the plan is run."""

MARK = "{ncclt-mark}"
"""Placeholder in arguments and files of a plan for the mark of the launch, new for every run.

It consists of letters, digits and `-`, so it can be part of a job's name; everything the launch starts carries it in
the variable NCCLT_LAUNCH.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobShape:
    """Number of processes of a job, and its nodes.

    Attributes:
        nodes: how many.
        processes_per_node: one per GPU where the benchmark needs a process for each rank.
        hosts: names of the nodes to use, in the order of the ranks; empty = those that the launcher chooses.
    """

    nodes: int = 1
    processes_per_node: int = 1
    hosts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.nodes < 1 or self.processes_per_node < 1:
            raise UsageError("a launch needs at least 1 node and 1 process on each")
        if self.hosts and len(self.hosts) != self.nodes:
            raise UsageError(f"the number of hosts ({len(self.hosts)}) differs from the number of nodes ({self.nodes})")

    @property
    def world_size(self) -> int:
        """Return the number of processes."""
        return self.nodes * self.processes_per_node


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchResult:
    """Result of a launch.

    Attributes:
        exit_code: negative = ended by that signal; None = it could not be prepared, or could not be ended.
        timed_out: it was ended because it exceeded its timeout.
        killed: it was ended by `Launcher.kill`.
        stdout, stderr: the last part of each, decoded; how much is kept is the launcher's choice.
        dropped_bytes: what came before that part, of both together.
        wall_s: from the start until nothing of it was left.
        not_started: why no process of the command started: the launcher was refused, or a node lacks the program.
            Such a launch says nothing about the command's variables. Empty = one started.
        survivors: process ids that even SIGKILL did not end, for example while a driver hangs; almost always empty.
        left_elsewhere: what the clean-up could not do on other machines, one sentence each; almost always empty.
        lost: why the nodes that it ran on were lost, so that its end says nothing about the command; empty = not
            lost, as far as is known.
        requeued: the scheduler starts the job of this program again by itself.
    """

    exit_code: int | None
    timed_out: bool = False
    killed: bool = False
    stdout: str = ""
    stderr: str = ""
    dropped_bytes: int = 0
    wall_s: float = 0.0
    not_started: str = ""
    survivors: tuple[int, ...] = ()
    left_elsewhere: tuple[str, ...] = ()
    lost: str = ""
    requeued: bool = False

    def require_nodes(self) -> None:
        """Refuse to judge a launch whose nodes were lost.

        Raises:
            NodesLostError: they are.
        """
        if self.lost:
            raise NodesLostError(
                f"the allocation is lost: {self.lost}",
                hint=f"{'' if self.requeued else 'run the same command in a new one; '}the interrupted launch does not "
                "count",
            )

    def require_start(self) -> None:
        """Refuse to judge a launch of which nothing ran.

        Raises:
            NotStartedError: no process of the command started.
        """
        if self.not_started:
            raise NotStartedError(
                f"the launch did not start: {self.not_started}",
                hint="no trial was stored for it; see that all nodes are up and have the program (--dry-run shows the "
                "command), then run the same command to resume",
            )


NO_OPTIONS: Mapping[str, Any] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherOption:
    """Option that only one launcher knows, written KEY=VALUE.

    Attributes:
        key: the word before `=`; a key that ends with a dot is completed by a name, as in `resource.rdma/hca=8`.
        metavar: the value in the help, for example `SECONDS`.
        help: one line.
        parse: reads the value, and raises ValueError for one that cannot be used; no value is empty.
        is_repeatable: all values are kept, in order; otherwise a key, or a key with the same name, is given once.
        of_submission: only for the batch job of a whole study, so commands that submit none refuse it.
    """

    key: str
    metavar: str
    help: str
    parse: Callable[[str], Any] = str
    is_repeatable: bool = False
    of_submission: bool = False

    @property
    def usage(self) -> str:
        """Return the option as the help shows it: `namespace=NAME`, `resource.NAME=AMOUNT`."""
        return f"{self.key}{'NAME' if self.key.endswith('.') else ''}={self.metavar}"

    def matches(self, key: str) -> bool:
        """Return True if a key that was written is this option's."""
        return key.startswith(self.key) and len(key) > len(self.key) if self.key.endswith(".") else key == self.key


class ProcessOptions(TypedDict, total=False):
    """Arguments of all launchers; see `ProcessLauncher`."""

    shape: JobShape | None
    python: str
    uses_mpi: bool
    environment: Mapping[str, str] | None
    keep_env: Collection[str]
    extra: Sequence[str]
    grace_s: float
    kill_grace_s: float
    keep_bytes: int


class Launcher(Port):
    """Starts commands.

    Subclass it: a class is listed by name in `ncclt.launch.LAUNCHERS` or under the entry-point group
    `ncclt.launchers`, and its attributes say how it differs from others before one is created. No other module compares
    its name.

    Contract: `plan` is pure; its plan can be shown, kept and compared. `run` is the only side effect; it returns for
    every command, whatever that does (crash, hang, print without end, not exist), and when it returns or raises,
    nothing that it started still runs, except for what it names as `survivors` and `left_elsewhere`. The variables of
    a plan reach the command. Variables named NCCL_* of the caller's own environment reach it only if the launcher is
    configured to keep them, and every process of a launch sees the same values. Several threads may be in `run` at
    once. A launch that fails before the first process of its command is `not_started`, whatever the launcher's own
    program says: `run` waits, tries again, and gives that result only after the last try.

    Attributes:
        name: the word used with `--launcher`.
        shares_files: all processes run on this machine, so its temporary files are theirs.
        starts_ranks: it starts one process for each GPU, not one process for all of them.
        needs_torch: torchrun starts the ranks, so programs that were built with MPI cannot find each other.
        uses_allocation: without named hosts it runs on the nodes that a resource manager has granted.
        chooses_nodes: every launch gets nodes of the cluster's choice, so none can be named, asked or compared.
        reaches_back: processes can connect to this machine and load its tuner plugin.
        job_variable: set inside an allocation; outside, a whole study is submitted as one batch job. Empty = this
            launcher submits none.
        options: options that only this launcher knows.
    """

    name: ClassVar[str]
    shares_files: ClassVar[bool] = False
    starts_ranks: ClassVar[bool] = True
    needs_torch: ClassVar[bool] = False
    uses_allocation: ClassVar[bool] = False
    chooses_nodes: ClassVar[bool] = False
    reaches_back: ClassVar[bool] = True
    job_variable: ClassVar[str] = ""
    options: ClassVar[tuple[LauncherOption, ...]] = ()

    @classmethod
    def create(cls, *, options: Mapping[str, Any] = NO_OPTIONS, **process: Unpack[ProcessOptions]) -> Launcher:
        """Return a launcher of jobs of one shape.

        Args:
            options: as `parse_options` returns them.
            process: see `ProcessLauncher`.

        Raises:
            UsageError: it cannot start such jobs here.
        """
        ...

    def plan(
        self, argv: Sequence[str], *, variables: Mapping[str, str], timeout_s: float, files: Sequence[Path] = ()
    ) -> LaunchPlan:
        """Decide how a command would be started under some variables.

        Args:
            argv: the command of one process; every process of the job's shape runs the same.
            variables: for every process.
            timeout_s: for the launch as a whole.
            files: files of this machine that are named in `argv` and read by the command; a launcher whose nodes do
                not share this machine's files copies them there and replaces their paths.
        """
        ...

    def run(self, plan: LaunchPlan) -> LaunchResult:
        """Start it and wait for its end."""
        ...

    def kill(self) -> None:
        """End what every `run` is waiting for, at once; may be called from a signal handler or another thread."""
        ...


def parse_options(launcher: type[Launcher], words: Sequence[str], *, submits: bool = True) -> dict[str, Any]:
    """Return the values of KEY=VALUE options, by key with `_` for `-`.

    Values of a repeatable option are a tuple, those of a key with names are sorted pairs (name, value).

    Args:
        launcher: declares the options.
        words: as written.
        submits: the command may submit a batch job.

    Raises:
        UsageError: the launcher has no such option, cannot use its value, takes only one, or the command submits none.
    """
    values: dict[str, Any] = {}
    written_keys: set[str] = set()
    for word in words:
        key, equals, text = word.partition("=")
        option = next((option for option in launcher.options if option.matches(key)), None)
        if option is None or not equals:
            usages = ", ".join(option.usage for option in launcher.options)
            raise UsageError(
                f"--launcher {launcher.name} has no option {word!r}",
                hint=f"its options: {usages}" if usages else "it has no options of its own",
            )
        if option.of_submission and not submits:
            raise UsageError(
                f"--launcher-option {key} does not apply: this command submits no batch job",
                hint="only `ncclt tune` does",
            )
        if key in written_keys and not option.is_repeatable:
            raise UsageError(f"--launcher-option {key} is given twice", hint=f"{option.usage}: {option.help}")
        written_keys.add(key)
        field = option.key.rstrip(".").replace("-", "_")
        try:
            if not text.strip():
                raise ValueError("its value is empty")
            value = option.parse(text if not option.key.endswith(".") else word.removeprefix(option.key))
        except ValueError as error:
            raise UsageError(
                f"invalid --launcher-option {word!r}: {error}", hint=f"{option.usage}: {option.help}"
            ) from error
        if option.key.endswith("."):
            values[field] = tuple(sorted({**dict(values.get(field, ())), value[0]: value[1]}.items()))
        else:
            values[field] = (*values.get(field, ()), value) if option.is_repeatable else value
    return values
