"""Classes of NCCL's variables, and what of an environment reaches trials."""

from ncclt.nccl.parameters import CATALOGUE
from ncclt.nccl.variables import (
    KNOWN,
    SplitVariables,
    VariableClass,
    classify,
    read_environment,
    site_variables,
    split_variables,
)


def test_every_known_variable_has_one_class_and_a_reason():
    for name in sorted(KNOWN):
        found, why = classify(name)
        assert found is not VariableClass.UNKNOWN, name
        assert why, name


def test_what_may_be_searched_is_tuning():
    assert {classify(row.variable)[0] for row in CATALOGUE if row.safe} == {VariableClass.TUNING}


def test_plugins_variables_are_classified_by_their_prefix():
    names = ("NCCL_TUNER_CONFIG_FILE", "NCCL_INSPECTOR_ENABLE", "NCCL_FASTRAK_IFNAME", "NCCL_NO_SUCH_THING")
    assert [classify(name)[0].value for name in names] == ["tuning", "debug", "site", "unknown"]


def test_an_environment_is_split_by_class():
    environ = {"PATH": "/bin", "NCCL_PROTO": "LL", "NCCL_IB_HCA": "mlx5", "NCCL_DEBUG": "INFO", "NCCL_OURS": "1"}
    found = split_variables(environ)
    assert found == SplitVariables(
        site={"NCCL_IB_HCA": "mlx5"},
        tuning={"NCCL_PROTO": "LL"},
        debug={"NCCL_DEBUG": "INFO"},
        unknown={"NCCL_OURS": "1"},
    )
    assert set(found.of_trials) == {"NCCL_IB_HCA", "NCCL_OURS"}
    assert set(found.of_job) == {"NCCL_IB_HCA", "NCCL_OURS", "NCCL_PROTO"}


def test_a_table_of_ncclt_goes_with_the_plugin_that_reads_it():
    table = {"NCCLT_TABLE": "1:t", "NCCLT_SERVER": "http://x"}
    assert split_variables(table).tuning == {}
    with_plugin = split_variables({**table, "NCCL_TUNER_PLUGIN": "ncclt"})
    assert set(with_plugin.tuning) == {"NCCL_TUNER_PLUGIN", "NCCLT_TABLE"}


def test_what_changes_no_times_or_is_nccls_default_is_not_compared():
    same = {
        "NCCL_IB_TIMEOUT": "22",
        "NCCL_HOSTID": "a",
        "NCCL_IB_DISABLE": "0",
        "NCCL_CONF_FILE": "/x",
        "NCCL_HOME": "/x",
    }
    assert site_variables({**same, "NCCL_PROTO": "LL", "NCCL_IB_HCA": "mlx5"}) == (("NCCL_IB_HCA", "mlx5"),)


def test_what_every_trial_has_is_compared_and_values_of_plugins_are_masked(tmp_path):
    conf = tmp_path / "nccl.conf"
    conf.write_text("# NCCL_IB_TC=1\nNCCL_BUFFSIZE=1048576\nNCCL_BUFFSIZE=2\n")
    environ = {"NCCL_CONF_FILE": str(conf), "NCCL_UCX_API_KEY": "secret", "NCCL_OURS": "1", "NCCL_PROTO": "LL"}
    found = dict(site_variables(environ))
    assert (set(found), found["NCCL_BUFFSIZE"]) == ({"NCCL_BUFFSIZE", "NCCL_UCX_API_KEY", "NCCL_OURS"}, "1048576")
    assert "secret" not in str(found)


def test_variables_have_the_source_that_nccl_takes_first(tmp_path):
    named, home = tmp_path / "named.conf", tmp_path / ".nccl.conf"
    named.write_text("NCCL_IB_HCA=of_file\nNCCL_IB_TC=106\n")
    home.write_text("NCCL_IB_SL=3\n")
    environ = {"NCCL_IB_HCA": "of_shell", "HOME": str(tmp_path)}
    assert read_environment(environ)["NCCL_IB_SL"] == ("3", str(home))
    found = read_environment({**environ, "NCCL_CONF_FILE": str(named)})
    assert found["NCCL_IB_HCA"] == ("of_shell", "the environment")
    assert found["NCCL_IB_TC"] == ("106", str(named))
    assert "NCCL_IB_SL" not in found
