"""Rendered texts in the hands of the real programs: shells, mpirun, and a TaskProlog of a real Slurm."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace

import pytest
import rendered as samples
from program import run_program

from ncclt.deliver.render.formats import render

HOSTILE = replace(samples.TUNED, model=samples.HOSTILE, cluster="*" + samples.HOSTILE)
# What no control character can be in.
PROLOG = replace(HOSTILE, model="".join(filter(str.isprintable, samples.HOSTILE)))
WANTED = {**samples.PLAIN_VARIABLES, "NCCLT_RECOMMENDATION": "r-1f3c", "NCCLT_SIMULATED": "1"}
DUMP = "import json, os; print(json.dumps({n: v for n, v in os.environ.items() if n.startswith('NCCL')}))"
SOURCES = {
    "bash": ["bash", "-c", 'eval "$(cat text)"; exec "$0" -c "$1"'],
    "dash": ["dash", "-c", 'eval "$(cat text)"; exec "$0" -c "$1"'],
    "zsh": ["zsh", "-fc", 'eval "$(cat text)"; exec "$0" -c "$1"'],
    "fish": ["fish", "--no-config", "-c", "cat text | source; exec $argv[1] -c $argv[2]"],
    "fish eval": ["fish", "--no-config", "-c", "eval (cat text); exec $argv[1] -c $argv[2]"],
    "csh": ["tcsh", "-fc", "source text; exec $1:q -c $2:q"],
    "csh eval": ["tcsh", "-fc", "eval `cat text`; exec $1:q -c $2:q"],
}
"""How people take the text over; the program that shows the environment comes after it."""


def environment_after(way, text, folder, **inherited):
    """Return the NCCL* variables of a program started from a shell that took over the text."""
    argv = SOURCES[way]
    program = shutil.which(argv[0])
    if program is None:
        pytest.skip(f"{argv[0]} is not installed here")
    (folder / "text").write_text(text)
    # csh has no $0 for -c: its arguments begin at 1, as fish's $argv does.
    done = run_program(
        [program, *argv[1:], sys.executable, DUMP],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "HOME": str(folder), **inherited},
    )
    assert (done.returncode, done.stderr) == (0, ""), done
    assert not (folder / "pwned").exists()
    return json.loads(done.stdout)


def language(way):
    return {"bash": "bash", "dash": "bash", "zsh": "bash"}.get(way, way.split()[0])


@pytest.mark.parametrize("way", SOURCES)
def test_a_real_shell_sets_and_unsets_exactly_the_variables(way, tmp_path):
    text = render(HOSTILE, format="export", shell=language(way))
    undo = render(HOSTILE, format="export", shell=language(way), unset=True)

    assert environment_after(way, text, tmp_path) == WANTED
    both = text.partition("#")[0] + undo  # where eval joins the lines, a comment would hide what follows
    assert environment_after(way, both, tmp_path, NCCL_DEBUG="WARN") == {"NCCL_DEBUG": "WARN"}
    assert environment_after(way, undo, tmp_path) == {}


def test_bash_splits_the_words_for_a_command_line_into_the_same_values(tmp_path):
    (tmp_path / "NCCL_ALGO=bait").touch()
    for format, option in (("mpirun-x", "-x"), ("docker-env", "--env")):
        (tmp_path / "text").write_text(render(HOSTILE, format=format))
        done = subprocess.run(
            ["bash", "-c", "printf '%s\\n' $(cat text)"], cwd=tmp_path, check=True, capture_output=True, text=True
        )
        words = done.stdout.splitlines()
        assert words[::2] == [option] * len(WANTED)
        assert dict(word.split("=", 1) for word in words[1::2]) == WANTED


def prolog_lines(text, folder, shell, **environment):
    """Run the script with nothing but a shell, as it promises to need no program; return what it prints."""
    (folder / "prolog").write_text(text)
    subprocess.run([shell, "-n", "prolog"], cwd=folder, check=True, capture_output=True)
    done = run_program([shutil.which(shell), "prolog"], cwd=folder, env={"PATH": "/nowhere", **environment})
    assert (done.returncode, done.stderr) == (0, "")
    assert not (folder / "pwned").exists()
    return done.stdout.splitlines()


@pytest.mark.parametrize("shell", ["bash", "dash"])
def test_the_task_prolog_speaks_to_its_workload_on_the_measured_size_only(shell, tmp_path):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed here")
    text = render(PROLOG, format="slurm-taskprolog")
    step = {"NCCLT_MODEL": PROLOG.model, "SLURM_STEP_NUM_NODES": "2", "SLURM_JOB_NUM_NODES": "8"}
    tasks = {"SLURM_STEP_TASKS_PER_NODE": "4(x2)"}
    said = prolog_lines(text, tmp_path, shell, **step, **tasks)

    assert dict(line.removeprefix("export ").split("=", 1) for line in said) == WANTED
    torchrun = {"SLURM_GPUS_ON_NODE": "4", "SLURM_STEP_TASKS_PER_NODE": "1(x2)"}
    assert prolog_lines(text, tmp_path, shell, **step, **torchrun) == said
    for other in (
        {},
        tasks,
        step,
        torchrun,
        step | {"SLURM_STEP_TASKS_PER_NODE": "4,2"},
        step | tasks | {"NCCLT_MODEL": "bert"},
        step | tasks | {"SLURM_GPUS_ON_NODE": "8"},
        step | tasks | {"SLURM_STEP_NUM_NODES": "1"},
        step | tasks | {"NCCLT_LAUNCH": "1a2b-000001"},
    ):
        assert prolog_lines(text, tmp_path, shell, **other) == []


def test_a_real_slurm_gives_the_tasks_what_the_prolog_says(slurm_cluster, tmp_path):
    """All tasks of the workload's step get all of it; another workload and another size run on without."""
    prolog = tmp_path / "prolog.sh"
    prolog.write_text(render(PROLOG, format="slurm-taskprolog"))
    prolog.chmod(0o755)
    mine, other = {"NCCLT_MODEL": PROLOG.model}, {"NCCLT_MODEL": "gpt"}
    with slurm_cluster.allocation() as environment:
        clean = {name: value for name, value in environment.items() if not name.startswith("NCCL")}
        for nodes, job, wanted in ((2, mine, {**mine, **WANTED}), (1, mine, mine), (2, other, other), (2, {}, {})):
            done = run_program(
                ["srun", f"-N{nodes}", "--ntasks-per-node=4", f"--task-prolog={prolog}", sys.executable, "-c", DUMP],
                env=clean | job,
            )
            assert done.returncode == 0, done
            assert [json.loads(line) for line in done.stdout.splitlines()] == [wanted] * nodes * 4
