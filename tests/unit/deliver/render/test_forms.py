"""Every form of the result, read with the rules of its reader: the same values, whatever the names are."""

from dataclasses import replace

import format_readers as readers
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rendered import AG, AR, BY_SIZE, HOSTILE, KEPT, ONE_GROUP, PLAIN_VARIABLES, PROVEN, TUNED, WITH_ROWS, hostile

from ncclt.client.answer import FORMS, GROUP_FORMS, TABLES
from ncclt.core.algorithms import Algorithm, Protocol
from ncclt.core.policy import Policy, Rule
from ncclt.core.recommendation import PolicyVerdict
from ncclt.deliver.render.formats import FORMATS, check_form, env_document, render, render_variables
from ncclt.errors import NoRecommendationError, SettingError, UsageError

TRACED = {**PLAIN_VARIABLES, "NCCLT_RECOMMENDATION": "r-1f3c", "NCCLT_SIMULATED": "1"}
READERS = {
    "dotenv": readers.read_verbatim,
    "configmap": lambda text: readers.read_configmap(text)[0],
    "trainjob-env": readers.read_env_list,
    "cloudai": readers.read_cloudai,
    "mpirun-x": lambda text: readers.read_words(text, "-x"),
    "docker-env": lambda text: readers.read_words(text, "--env"),
}
SHELL_READERS = {"fish": readers.read_fish, "csh": readers.read_csh}
nasty = st.text(st.sampled_from(list("aZ9 '\"\\`$(){}[]!#*?~;&|<>=,:%@^-é漢")), max_size=30)


@settings(max_examples=40, deadline=None)
@given(name=hostile, kept=st.booleans())
@example(name=HOSTILE, kept=False)
def test_every_reader_gets_the_same_variables_whatever_the_names(name, kept):
    made = replace(KEPT if kept else TUNED, model=name * 9, cluster=name, simulated=True)
    wanted = {"NCCLT_RECOMMENDATION": "r-1f3c", "NCCLT_SIMULATED": "1"} if kept else TRACED

    for format, read in READERS.items():
        assert read(render(made, format=format)) == wanted, format
    for shell, read in SHELL_READERS.items():
        assert read(render(made, format="export", shell=shell)) == wanted, shell


@pytest.mark.parametrize("form", [form for form in FORMS if form not in ("json", *TABLES)])
@settings(max_examples=20, deadline=None)
@given(nasty)
@example("a\nb")
@example("ring," * 300 + "ring")
def test_a_value_that_nccl_never_takes_is_refused_in_every_form(form, value):
    """Compiling never yields one; the writing does not rely on it. nccl.conf cuts a value at 1023 characters."""
    for name in ("NCCL_A", "NCCL_ALGO", "NCCL_BUFFSIZE"):
        with pytest.raises(SettingError, match=name):
            render_variables({**env_document(TUNED), "variables": {name: value}}, form=form)


def test_a_model_with_a_control_character_gets_no_prolog(subtests):
    for model in ["a\nb", "a\rb", "a\x00b", "a\x1bb"]:
        with subtests.test(model=model), pytest.raises(SettingError, match="control character"):
            render(replace(TUNED, model=model), format="slurm-taskprolog")


@settings(max_examples=60, deadline=None)
@given(model=hostile, cluster=hostile, id=hostile)
@example(model="A" * 400, cluster="-._", id="." * 80)
@example(model="", cluster="", id="")
def test_a_configmap_is_valid_whatever_the_names(model, cluster, id):
    _, made = readers.read_configmap(render(replace(TUNED, model=model, cluster=cluster, id=id), format="configmap"))

    assert made["metadata"]["name"].startswith("ncclt.")
    assert len(made["metadata"]["name"]) < 200


def name_of(**changes):
    _, made = readers.read_configmap(render(replace(TUNED, **changes), format="configmap"))
    return made["metadata"]["name"]


def test_configmaps_of_different_jobs_have_different_names():
    jobs = [
        {"model": "bert"},
        {"model": "Bert"},
        {"model": "bert.large"},
        {"model": "bert-large"},
        {"model": "bert_large"},
        {"model": "bert-large", "cluster": "x"},
        {"model": "bert", "cluster": "large-x"},
        {"fingerprint": replace(TUNED.fingerprint, nodes=4)},
    ]
    names = [name_of(**job) for job in jobs]

    assert names[0] == "ncclt.bert.leonardo.2x4"
    assert len(set(names)) == len(names)


def test_a_name_of_63_characters_stays_whole_and_a_longer_one_is_cut_and_told_apart():
    assert name_of(model="b" * 63) == f"ncclt.{'b' * 63}.leonardo.2x4"
    cut, other = name_of(model="b" * 64), name_of(model="b" * 65)
    assert cut.rpartition(".")[0] == other.rpartition(".")[0] == name_of(model="b" * 63)
    assert cut != other


def test_the_label_of_a_configmap_follows_its_data_and_nothing_else():
    def content(recommendation):
        _, made = readers.read_configmap(render(recommendation, format="configmap"))
        return made["metadata"]["labels"]["ncclt-content"]

    assert content(TUNED) == content(replace(TUNED, model="other"))
    assert content(TUNED) != content(replace(TUNED, simulated=False, launcher="slurm"))
    assert content(TUNED) != content(replace(TUNED, variables=KEPT.variables))


def test_pyxis_names_every_variable_that_must_win_in_the_container():
    lines = render(TUNED, format="pyxis").splitlines()
    exported = [line.split()[1].partition("=")[0] for line in lines if line.startswith("export ")]
    option = next(line for line in lines if "NCCLT_PYXIS" in line).partition("NCCLT_PYXIS=")[2]

    assert option == f"--container-env={','.join(exported[:-1])}"
    assert exported[:-1] == [*sorted(PLAIN_VARIABLES), "NCCLT_RECOMMENDATION", "NCCLT_SIMULATED"]


def test_texts_end_with_one_line_feed_and_have_no_other_line_end(subtests):
    for format in FORMATS:
        with subtests.test(format=format):
            options = {"nvidia-csv": {"channels": 8}, "megatron-yaml": {"group": "tp"}}.get(format, {})
            text = render(ONE_GROUP if format in GROUP_FORMS else WITH_ROWS, format=format, **options)

            assert text.endswith("\n")
            assert not text.endswith("\n\n")
            assert "\r" not in text


def test_an_option_that_a_format_does_not_have_is_refused(subtests):
    for format, options in [
        ("dotenv", {"shell": "fish"}),
        ("json", {"unset": True}),
        ("export", {"channels": 4}),
        ("export", {"shell": "zsh"}),
    ]:
        with subtests.test(format=format, options=options):
            with pytest.raises(UsageError) as caught:
                check_form(format, **options)
            assert caught.value.hint


def test_what_a_text_cannot_say_is_said_beside_it(subtests):
    for format, shell, said in [
        ("mpirun-x", "bash", True),
        ("docker-env", "bash", True),
        ("export", "csh", True),
        ("export", "bash", False),
        ("configmap", "bash", False),
    ]:
        with subtests.test(format=format, shell=shell, said=said):
            beside = []
            text = render(TUNED, format=format, shell=shell, warn=beside.append)

            assert ("# warning: the channel cap" in text) is not said
            assert bool(beside) is said
            assert not said or any("warning: the channel cap also applies to send_recv" in line for line in beside)


def with_rules(*rules, version="2.28.9"):
    policy = Policy(rules=rules, parameters=(("BUFFSIZE", 8388608),))
    return replace(
        TUNED,
        fingerprint=replace(TUNED.fingerprint, nccl_version=version),
        table=PolicyVerdict(policy=policy, verdict=PROVEN),
    )


def test_the_table_for_nvidia_covers_every_size_with_explicit_channels_and_says_what_it_widened():
    made = with_rules(
        Rule(
            collective=AR, min_bytes=1024, max_bytes=65536, algorithm=Algorithm.TREE, protocol=Protocol.LL, channels=4
        ),
        Rule(
            collective=AR, min_bytes=2**20, max_bytes=2**24, algorithm=Algorithm.RING, protocol=Protocol.LL, channels=8
        ),
        Rule(collective=AG, algorithm=Algorithm.RING, protocol=Protocol.SIMPLE, channels=16),
    )
    text = render(made, format="nvidia-csv")
    rows = readers.read_example_table(text)

    for size in (0, 1, 1023, 1024, 65536, 65537, 2**20 - 1, 2**20, 2**24, 2**24 + 1, 2**32, 2**50):
        chosen = readers.look_up(rows, "allreduce", size, 2, 8)
        assert chosen == (("tree", "ll", 4) if size < 2**20 else ("ring", "ll", 8)), size
    assert all(row[5] >= 1 for row in rows)
    assert "# warning: the A/B test did not cover the sizes added below: they may be slower" in text
    assert (
        "# warning: all_reduce 1 KiB to 64 KiB: tree/ll c=4: extended below 1 KiB, beyond the validated sizes" in text
    )
    assert (
        "# warning: all_reduce 1 KiB to 64 KiB: tree/ll c=4: extended above 64 KiB, beyond the validated sizes" in text
    )
    assert (
        "# warning: all_reduce 1 MiB to 16 MiB: ring/ll c=8: extended above 16 MiB, beyond the validated sizes" in text
    )
    assert "ONE channel" in text
    assert "# needs NCCL_BUFFSIZE=8388608" in text


def test_nothing_goes_to_nvidias_plugin_that_it_would_run_on_one_channel():
    open_channels = with_rules(Rule(collective=AR, algorithm=Algorithm.RING, protocol=Protocol.LL))
    open_protocol = with_rules(Rule(collective=AR, algorithm=Algorithm.RING, channels=8))

    with pytest.raises(SettingError, match="leaves the number of channels") as caught:
        render(open_channels, format="nvidia-csv")
    assert "--channels" in caught.value.hint
    with pytest.raises(SettingError, match="must name algorithm and protocol"):
        render(open_protocol, format="nvidia-csv", channels=8)
    with pytest.raises(NoRecommendationError, match="every call on one channel"):
        render(KEPT, format="nvidia-csv", channels=8)
    with pytest.raises(UsageError, match="1 to 64"):
        render(open_channels, format="nvidia-csv", channels=65)
    old = with_rules(*open_channels.table.policy.rules, version="2.24.3")
    with pytest.raises(UsageError, match="1 to 32"):
        render(old, format="nvidia-csv", channels=33)


def test_rccl_and_ncclx_choose_what_the_policy_chooses(subtests):
    for size in [1, 4096, 65536, 65544, 2**33]:
        with subtests.test(size=size):
            made = with_rules(*BY_SIZE.rules[1:])
            rccl = readers.read_example_table(render(made, format="rccl-csv"))
            ncclx = readers.read_ncclx_table(render(made, format="ncclx"))
            whole = ("tree", "ll", 4) if size <= 65536 else ("ring", "ll128", -1)

            assert (
                readers.look_up(rccl, "allreduce", size, 2, 8)
                == readers.look_up_ncclx(ncclx, "allreduce", size, 2, 4)
                == whole
            )
            assert all(len(row) == 10 and row[8:] == (-1, -1) for row in rccl)
            for nodes, local in ((1, 2), (2, 1)):
                assert readers.look_up_ncclx(ncclx, "allreduce", size, nodes, local) == ("ring", "ll", 2)
            assert readers.look_up_ncclx(ncclx, "allreduce", size, 4, 4) is None
            assert readers.look_up_ncclx(ncclx, "allgather", size, 2, 4) is None


def test_ncclx_says_what_bytes_per_rank_blur_and_what_they_hide():
    text = render(
        with_rules(
            Rule(collective=AR, max_bytes=65536, algorithm=Algorithm.TREE, protocol=Protocol.LL),
            Rule(collective=AR, min_bytes=65537, max_bytes=65540, algorithm=Algorithm.RING, protocol=Protocol.LL),
            Rule(collective=AR, min_bytes=65541, algorithm=Algorithm.RING, protocol=Protocol.SIMPLE),
            Rule(collective=AG, group_size=7, algorithm=Algorithm.RING, protocol=Protocol.SIMPLE),
        ),
        format="ncclx",
    )
    rows = readers.read_ncclx_table(text)

    assert [row[1:5] for row in rows] == [(0, 8192, "tree", "ll"), (8193, 2**63 - 1, "ring", "simple")]
    assert "tree/ll: up to 7 bytes more, as NCCLX counts bytes per rank" in text
    assert "ring/ll: narrower than a byte per rank" in text
    assert "no even way to lay 7 ranks over 2 nodes" in text
    assert readers.read_ncclx_table(render(KEPT, format="ncclx")) == []


@pytest.mark.parametrize(("version", "loads"), [("2.18.3", False), ("2.20.5", False), ("2.21.5", True)])
def test_a_table_is_not_promised_to_an_nccl_that_cannot_load_it(version, loads):
    made = with_rules(*BY_SIZE.rules, version=version)

    for format in ("tuner-csv", "rccl-csv", "ncclx"):
        assert ("# warning: the whole policy: tuner tables" in render(made, format=format)) is not loads
    assert ("use --format tuner-csv" in render(made, format="export")) is loads
