"""Rendered text, read by those who will read it: bash, docker, NCCL's configuration and tuner table."""

import itertools
import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import format_readers as readers
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from rendered import (
    AG,
    AR,
    BY_SIZE,
    HOSTILE,
    KEPT,
    ONE_GROUP,
    PLAIN,
    PLAIN_VARIABLES,
    PROVEN,
    TUNED,
    WITH_ROWS,
    hostile,
)

from ncclt.client.answer import GROUP_FORMS
from ncclt.core.algorithms import Algorithm, Protocol
from ncclt.core.message import Message
from ncclt.core.policy import Policy, Rule
from ncclt.core.recommendation import Decision, PolicyVerdict
from ncclt.deliver.answer import answer_from_document, answer_from_json
from ncclt.deliver.render.formats import FORMATS, env_document, render
from ncclt.errors import InputError, NoRecommendationError, SettingError, UsageError

GOLDEN = Path(__file__).resolve().parents[3] / "golden" / "env"
FORMS = [
    *(
        (f"{name}.{format}", recommendation, {"format": format})
        for name, recommendation in (("tuned", TUNED), ("keep_default", KEPT))
        for format in FORMATS
        if format not in ("nvidia-csv", *GROUP_FORMS) and (name, format) != ("keep_default", "slurm-taskprolog")
    ),
    *(
        (f"{name}.{format}", recommendation, {"format": format, "group": group})
        for name, recommendation in (("one_group", ONE_GROUP), ("keep_default", KEPT))
        for format, group in (("json", ""), ("pg-options", ""), ("megatron-yaml", "tp"))
    ),
    *(
        (f"tuned.{'unset' if unset else 'export'}-{shell}", TUNED, {"format": "export", "shell": shell, "unset": unset})
        for shell in ("bash", "fish", "csh")
        for unset in (False, True)
        if shell != "bash" or unset
    ),
    ("tuned.nvidia-csv", WITH_ROWS, {"format": "nvidia-csv", "channels": 16}),
]


def test_golden_text(subtests):
    """The text is pinned; run once with NCCLT_UPDATE_GOLDEN=1 after a wanted change, and read the difference."""
    for name, recommendation, form in FORMS:
        with subtests.test(name=name, recommendation=recommendation, form=form):
            path = GOLDEN / name
            text = render(recommendation, **form)
            if os.environ.get("NCCLT_UPDATE_GOLDEN"):
                path.write_text(text)

            assert text == path.read_text()


def in_bash(text, folder, *, quoted):
    """Return the environment that a shell has after `eval`, NCCL* only; the folder is full of bait for patterns."""
    (folder / "env.sh").write_text(text)
    (folder / "x\nexport NCCL_EVIL=1 #").touch()
    code = 'eval "$(cat env.sh)"' if quoted else "eval $(cat env.sh)"
    subprocess.run(["bash", "-n", "env.sh"], cwd=folder, check=True, env={}, capture_output=True)
    done = subprocess.run(
        ["bash", "-c", f"{code}; env -0"], cwd=folder, check=True, env={"PATH": os.environ["PATH"]}, capture_output=True
    )
    assert done.stderr == b""
    assert not (folder / "pwned").exists()
    pairs = (entry.partition("=") for entry in done.stdout.decode().split("\0"))
    return {name: value for name, _, value in pairs if name.startswith("NCCL")}


@pytest.mark.parametrize("quoted", [True, False])
@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(model=hostile, cluster=hostile, reason=hostile, kept=st.booleans())
@example(model=HOSTILE, cluster="*", reason=HOSTILE, kept=True)
def test_a_shell_gets_exactly_the_variables_whatever_the_names(tmp_path, quoted, model, cluster, reason, kept):
    verdict = replace(PROVEN, reason=reason, decision=Decision.KEEP_DEFAULT if kept else Decision.TUNED)
    recommendation = replace(
        TUNED, model=model, cluster=cluster, variables=PolicyVerdict(policy=PLAIN, verdict=verdict)
    )

    seen = in_bash(render(recommendation, format="export"), tmp_path, quoted=quoted)

    assert seen == {**({} if kept else PLAIN_VARIABLES), "NCCLT_RECOMMENDATION": "r-1f3c", "NCCLT_SIMULATED": "1"}


def test_a_hostile_id_becomes_one_harmless_word(tmp_path):
    text = render(replace(TUNED, id=HOSTILE), format="export")

    assert in_bash(text, tmp_path, quoted=False)["NCCLT_RECOMMENDATION"].startswith("x_export_NCCL_EVIL_1_")


@given(hostile)
def test_files_keep_every_name_inside_its_comment(name):
    """docker takes lines verbatim; NCCL knows comments in column 0 only and cuts what is too long."""
    recommendation = replace(TUNED, model=name * 50, cluster=name)

    assert readers.read_nccl_conf(render(recommendation, format="nccl-conf")) == PLAIN_VARIABLES
    assert readers.read_verbatim(render(recommendation, format="dotenv")) == {
        **PLAIN_VARIABLES,
        "NCCLT_RECOMMENDATION": "r-1f3c",
        "NCCLT_SIMULATED": "1",
    }
    assert len(readers.read_example_table(render(recommendation, format="tuner-csv"))) == 3


def test_the_table_chooses_what_the_policy_chooses(subtests):
    """Also for 4 GiB and more, and for a smaller group wherever it lies."""
    for size_bytes, (ranks, nodes) in itertools.product([1, 65536, 65537, 2**32, 2**40], [(8, 2), (2, 1), (2, 2)]):
        with subtests.test(size_bytes=size_bytes, ranks=ranks, nodes=nodes):
            rows = readers.read_example_table(render(TUNED, format="tuner-csv"))
            message = Message(collective=AR, dtype="float32", size_bytes=size_bytes, group_size=ranks)
            wanted = BY_SIZE.setting_for(message)

            assert readers.look_up(rows, "allreduce", size_bytes, nodes, ranks) == (
                wanted.algorithm,
                wanted.protocol,
                wanted.channels or -1,
            )


def test_the_table_is_for_this_job_size_only_and_says_what_it_cannot_carry():
    text = render(TUNED, format="tuner-csv")

    assert readers.look_up(readers.read_example_table(text), "allreduce", 1024, 4, 16) is None
    assert "# needs NCCL_BUFFSIZE=8388608" in text
    assert "# warning: all_gather: ring/auto: a row must name algorithm and protocol" in text
    assert "ONE channel" in text


def test_more_channels_than_nccl_opens_are_said_to_take_sms_from_compute():
    policy = replace(PLAIN, parameters=(("MIN_CTAS", 32),))
    text = render(replace(TUNED, variables=PolicyVerdict(policy=policy, verdict=PROVEN)), format="export")

    assert "export NCCL_MIN_CTAS=32" in text
    assert "take SMs from compute, it was measured next to a matrix product" in text.replace("\n# ", " ")


def test_json_holds_both_deliveries_with_their_verdicts():
    document = json.loads(render(TUNED, format="json"))

    assert document["schema"] == 1
    assert document["variables"] == PLAIN_VARIABLES
    assert (document["decision"], document["speedup"], document["interval"]) == ("tuned", 1.083, [1.06, 1.1])
    assert [row["protocol"] for row in document["table"]] == [None, "ll", "ll128", "ll"]
    assert document["table_parameters"] == {"BUFFSIZE": 8388608}
    assert document["origin"] == "simulated"


def test_a_task_prolog_that_would_set_nothing_is_not_written():
    with pytest.raises(NoRecommendationError, match=r"would set nothing: ncclt .*keep-default"):
        render(KEPT, format="slurm-taskprolog")


def test_keep_default_sets_no_nccl_variable_and_says_why():
    for format in ("export", "dotenv", "nccl-conf"):
        text = render(KEPT, format=format)

        assert not [line for line in text.splitlines() if "NCCL_" in line.split("#")[0]]
        assert "keep-default: the gain of 0.4 % is below 2 %" in text
    assert "the gain of 0.4 % is below 2 %" in render(replace(KEPT, variables=None), format="export")
    document = json.loads(render(KEPT, format="json"))
    assert (document["decision"], document["variables"], document["table"]) == ("keep-default", {}, [])
    assert readers.read_example_table(render(KEPT, format="tuner-csv")) == []


@pytest.mark.parametrize("variables", [None, PolicyVerdict(policy=BY_SIZE, verdict=PROVEN)])
def test_nothing_is_claimed_where_variables_can_say_nothing(variables):
    recommendation = replace(TUNED, variables=variables)

    text = render(recommendation, format="export")
    document = json.loads(render(recommendation, format="json"))

    assert "NCCL_" not in text.split("#", maxsplit=1)[0]
    assert "keep-default" in text
    assert "warning: the tuned policy, 1.08x," in text
    assert "1.08x" not in text.replace("warning: the tuned policy, 1.08x,", "")
    assert (document["decision"], document["speedup"], document["variables"]) == ("keep-default", None, {})


def test_an_unknown_format_is_refused_with_the_known_ones():
    with pytest.raises(UsageError) as caught:
        render(TUNED, format="yaml")

    assert caught.value.hint == f"one of {', '.join(FORMATS)}"


def test_a_table_with_a_rule_that_the_version_lacks_is_refused():
    policy = Policy(rules=(Rule(collective=AG, algorithm=Algorithm.TREE, protocol=Protocol.LL),))

    with pytest.raises(SettingError, match="does not implement"):
        render(replace(TUNED, table=PolicyVerdict(policy=policy, verdict=PROVEN)), format="tuner-csv")


def test_replayed_times_are_said_to_be_replayed_in_every_format():
    replayed = replace(TUNED, simulated=False, launcher="replay", recorded="recorded: box, site")

    for format in ("export", "dotenv", "nccl-conf", "tuner-csv"):
        text = render(replayed, format=format)
        assert "# recorded: box, site" in text, format
        assert "SIMULATED" not in text
    assert json.loads(render(replayed, format="json"))["launcher"] == "replay"
    assert "export NCCLT_RECORDED=1\n" in render(replayed, format="export")
    assert "recorded: " not in render(replace(TUNED, simulated=False, launcher="slurm"), format="export")


def test_a_store_and_a_server_make_the_same_offer():
    for made in (TUNED, KEPT):
        assert answer_from_document(env_document(made)) == answer_from_json(render(made, format="json"))


def test_an_offer_of_the_own_store_is_checked_like_that_of_a_server():
    with pytest.raises(InputError, match=r"recommendation is .* which ncclt never writes"):
        answer_from_document(env_document(replace(TUNED, id=HOSTILE)))
