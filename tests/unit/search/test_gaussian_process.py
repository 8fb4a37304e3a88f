"""Our Gaussian process against the same one written out in full."""

import re
from dataclasses import replace

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from ncclt.core.algorithms import Algorithm, Protocol
from ncclt.core.message import Collective, Message
from ncclt.core.setting import DEFAULT, Setting
from ncclt.core.workload import MessageCalls, Provenance, Workload
from ncclt.search import posterior as module
from ncclt.search.assemble import Times
from ncclt.search.gaussian_process import GaussianProcess, Table, prior_mean
from ncclt.search.observations import Launch, compress_losses, observe
from ncclt.search.posterior import Model, build_kernel, hyperparameter_grid, neg_log_prior, posterior_mean
from ncclt.search.prior import expected_log_ratios
from ncclt.search.space import cluster_space

PAIRS = [(Algorithm.RING, Protocol.LL), (Algorithm.RING, Protocol.SIMPLE), (Algorithm.TREE, Protocol.LL)]
SETTINGS = [Setting(algorithm=a, protocol=p, channels=c) for a, p in PAIRS for c in (None, 2, 8, 32)] + [
    Setting(algorithm=Algorithm.RING, protocol=Protocol.LL, parameters=(("BUFFSIZE", 1 << 20),)),
    Setting(parameters=(("BUFFSIZE", 1 << 20), ("NTHREADS", 128))),
]
MESSAGES = [
    Message(collective=c, dtype="float32", size_bytes=size, group_size=4)
    for c, size in ((Collective.ALL_REDUCE, 4096), (Collective.ALL_REDUCE, 1 << 20), (Collective.ALL_GATHER, 64 << 20))
]


@pytest.fixture
def kernel(cluster):
    return build_kernel(SETTINGS, MESSAGES, cluster)


@pytest.fixture
def table(cluster):
    draw = np.random.default_rng(1)
    rows, shape = np.array([5, 0, 9, 12]), (len(SETTINGS), len(MESSAGES))
    return Table(
        rows=rows,
        values=draw.standard_normal((len(rows), len(MESSAGES))),
        noise=np.array([0.04, 0.01, 0.02, 0.01]),
        expected=np.array([expected_log_ratios(SETTINGS, MESSAGES, cluster), *draw.standard_normal((2, *shape))]),
    )


def in_full(table, covariance):
    """Mean, variance and evidence by one dense covariance over all settings and messages."""
    messages = table.values.shape[1]
    everything = np.kron(covariance.smooth, covariance.sizes) + np.kron(covariance.rough, np.eye(messages))
    seen = (table.rows[:, None] * messages + np.arange(messages)).ravel()
    noisy = everything[np.ix_(seen, seen)] + np.diag(np.repeat(table.noise, messages))
    mean = np.tensordot(covariance.prior, table.expected, axes=1).ravel()
    residual = table.values.ravel() - mean[seen]
    across = everything[:, seen]
    _, logdet = np.linalg.slogdet(noisy)
    shape = table.expected[0].shape
    return (
        (mean + across @ np.linalg.solve(noisy, residual)).reshape(shape),
        np.diag(everything - across @ np.linalg.solve(noisy, across.T)).reshape(shape),
        -0.5 * (residual @ np.linalg.solve(noisy, residual) + logdet),
    )


def test_two_eigendecompositions_say_what_the_dense_process_says(kernel, table, subtests):
    cases = [hyperparameter_grid()[0], hyperparameter_grid()[-1]]
    for choice in cases:
        with subtests.test(choice=choice):
            covariance = kernel.covariance(*choice)
            mean, variance, evidence = in_full(table, covariance)

            posterior = GaussianProcess(table, covariance)
            found_mean, found_variance = posterior.predict(np.arange(len(SETTINGS)))

            np.testing.assert_allclose(found_mean, mean, atol=1e-9)
            np.testing.assert_allclose(found_variance, variance, atol=1e-9)
            assert posterior.evidence() == pytest.approx(evidence)


def test_other_weights_of_the_cost_model_need_no_other_decomposition(kernel, table):
    posterior = GaussianProcess(table, kernel.covariance(1.0, 0.06, 3.0, 1.0, 0.5))
    again = posterior.reweighted((0.0, 1.0, 1.0))
    mean, variance, evidence = in_full(table, kernel.covariance(1.0, 0.06, 3.0, 0.0, 1.0))

    np.testing.assert_allclose(again.predict(np.arange(len(SETTINGS))), (mean, variance), atol=1e-9)
    assert again.evidence() == pytest.approx(evidence)
    assert posterior.evidence() != pytest.approx(evidence)


def test_every_covariance_is_one(kernel, subtests):
    cases = hyperparameter_grid()[::10]
    for choice in cases:
        with subtests.test(choice=choice):
            covariance = kernel.covariance(*choice)

            for matrix in (covariance.smooth, covariance.rough, covariance.sizes):
                np.testing.assert_allclose(matrix, matrix.T)
                assert np.linalg.eigvalsh(matrix).min() > -1e-9


def test_a_parameter_that_is_off_has_its_place_beside_one_that_is_on(cluster):
    """Steps are counted on a scale on which 0 has a place too, unlike in doublings."""
    settings = [Setting(parameters=(("IB_QPS_PER_CONNECTION", value),)) for value in (0, 1, 4)]
    effects = module._parameter_effects([*settings, Setting()])
    assert np.diag(effects).tolist() == [1.0, 1.0, 1.0, 0.0]
    assert 1 > effects[0, 1] > effects[0, 2] > 0
    # One doubling from 0 to 1, two from 0 to 3.
    assert effects[0, 1] == pytest.approx(module._matern(0.5))


def test_neighbours_in_channels_are_more_alike_than_strangers(kernel):
    near, far = SETTINGS.index(SETTINGS[2]), SETTINGS.index(SETTINGS[3])

    smooth = kernel.covariance(*hyperparameter_grid()[0]).smooth
    assert smooth[1, near] > smooth[1, far] > 0
    assert smooth[1, near] > smooth[1, 6]


def test_the_cost_model_knows_that_one_channel_is_slow_for_large_messages_only(cluster):
    few, many = (Setting(algorithm=Algorithm.RING, protocol=Protocol.SIMPLE, channels=c) for c in (1, 32))
    large = Message(collective=Collective.ALL_REDUCE, dtype="float32", size_bytes=256 << 20, group_size=4)
    tiny = Message(collective=Collective.ALL_REDUCE, dtype="float32", size_bytes=256, group_size=4)

    table = expected_log_ratios([few, many], [large, tiny], cluster)

    assert table[0, 0] > 1.0
    assert table[0, 0] > table[1, 0]
    assert table[0, 1] == pytest.approx(table[1, 1], abs=0.05)


def test_where_the_cost_model_has_no_answer_it_says_nothing(cluster):
    sent = Message(collective=Collective.SEND_RECV, dtype="float32", size_bytes=1 << 20, group_size=4)

    assert expected_log_ratios([Setting(algorithm=Algorithm.RING)], [sent], cluster).tolist() == [[0.0]]


def test_where_launches_leave_the_model_in_doubt_it_is_less_sure_than_any_of_its_choices(cluster):
    """The cost model may be right or wrong: the first launch cannot tell, so predictions are uncertain by both."""
    calls = tuple(MessageCalls(message=m, calls_per_step=1.0) for m in MESSAGES)
    workload = Workload(name="w", messages=calls, provenance=Provenance(source="test"))
    settings = [s for s in SETTINGS if not s.parameters]
    model = Model(settings, workload, cluster)
    ratios = compress_losses(expected_log_ratios(settings, MESSAGES, cluster))[1]
    times = [Launch(setting=DEFAULT, times_us=(100.0,) * 3)]
    times += [Launch(setting=settings[1], times_us=tuple(100 * np.exp(ratios + 0.2)))]

    known = model.compute_posterior(observe(times), ())
    likely = model._likely_choices(_table_of(model, observe(times)))
    seen = replace(observe(times), sigma=known.noise**0.5)
    mean = [_predicted(model, seen, choice)[0] for _, choice in likely]
    variance = [_predicted(model, seen, choice)[1] for _, choice in likely]

    assert len(likely) > 1
    assert sum(weight for weight, _ in likely) == pytest.approx(1)
    weights = np.array([weight for weight, _ in likely])[:, None, None]
    np.testing.assert_allclose(known.mean, (weights * mean).sum(axis=0), atol=1e-7)
    assert (known.variance >= (weights * variance).sum(axis=0) - 1e-7).all()


def _table_of(model, observations):
    (setting,) = observations.ratios
    return Table(
        rows=np.array([model.settings.index(setting)]),
        values=compress_losses(observations.ratios[setting])[None, :],
        noise=np.array([observations.sigma**2]),
        expected=model._expected,
    )


def _predicted(model, observations, choice):
    return GaussianProcess(_table_of(model, observations), model._kernel.covariance(*choice)).predict(
        np.arange(len(model.settings))
    )


def test_whatever_the_cost_model_is_worth_a_large_message_takes_longer_over_one_channel(cluster):
    one, many = (Setting(algorithm=Algorithm.RING, protocol=Protocol.SIMPLE, channels=c) for c in (1, 32))
    sizes = (256 << 20, 1 << 10)
    calls = tuple(MessageCalls(message=replace(MESSAGES[0], size_bytes=s), calls_per_step=1.0) for s in sizes)
    model = Model((one, many), Workload(name="w", messages=calls, provenance=Provenance(source="test")), cluster)
    for choice in hyperparameter_grid():
        expected = prior_mean(model._kernel.covariance(*choice).prior, model._expected)
        assert expected[0, 0] - expected[1, 0] > 0.5
    doubting = next(choice for choice in hyperparameter_grid() if choice[-2:] == (0.0, 0.0))
    expected = prior_mean(model._kernel.covariance(*doubting).prior, model._expected)
    assert expected[:, 1] == pytest.approx([0.0, 0.0], abs=1e-3)


def once(settings):
    return {setting: dict.fromkeys(MESSAGES, 1) for setting in settings}


def some_launches(*, slow=None, again=False, sigma=0.02):
    """Launches of the default and of ring settings that are 10 % faster, one of which may be five times too slow."""
    draw = np.random.default_rng(1)
    rings = [Setting(algorithm=Algorithm.RING, protocol=Protocol.SIMPLE, channels=c) for c in (8, 12, 16, 24, 32)]
    found = [Launch(setting=DEFAULT, times_us=(100.0,) * 3)]
    for number, setting in enumerate([*rings, *(rings if again else [])]):
        factor = 5.0 if number == slow else 1.0
        times = 90 * factor * np.exp(sigma * draw.standard_normal(3))
        found.append(Launch(setting=setting, times_us=tuple(times.tolist())))
    return rings, found


def believed_of(cluster, settings, launches):
    calls = tuple(MessageCalls(message=m, calls_per_step=1.0) for m in MESSAGES)
    workload = Workload(name="w", messages=calls, provenance=Provenance(source="test"))
    return Model(settings, workload, cluster).compute_posterior(observe(launches), ())


def test_fewer_hyperparameters_are_averaged_the_more_settings_were_measured(cluster, monkeypatch):
    """The time of a proposal hangs on it; in the end the best choice stands alone however close the second one is."""
    space = cluster_space({Collective.ALL_REDUCE}, cluster, parameters={"BUFFSIZE": (1 << 20, 2 << 20, 8 << 20)})
    settings = [s for s in space.distinct if not s.is_default]
    draw = np.random.default_rng(0)
    times = (100 * np.exp(0.02 * draw.standard_normal((129, 3)))).tolist()
    launches = [Launch(setting=s, times_us=tuple(us)) for s, us in zip(settings[:129], times, strict=True)]
    seen = []
    mixture = Model._mixture
    monkeypatch.setattr(module, "_LEAST_WEIGHT", 0.0)
    monkeypatch.setattr(Model, "_mixture", lambda self, *found: (seen.append(found[1]), mixture(self, *found))[1])

    for count in (24, 25, 128, 129):
        believed_of(cluster, settings, [Launch(setting=DEFAULT, times_us=(100.0,) * 3), *launches[:count]])

    assert [len(likely) for likely in seen] == [16, 3, 3, 1]
    for likely in seen:
        weights = [weight for weight, _ in likely]
        assert weights == sorted(weights, reverse=True), "the likeliest are kept"


def test_hyperparameters_that_the_launches_rule_out_are_not_averaged(cluster):
    draw = np.random.default_rng(1)
    settings = [s for s in SETTINGS if not s.parameters]
    launches = [
        Launch(setting=s, times_us=tuple(100 * np.exp(0.3 * draw.standard_normal(3)))) for s in [DEFAULT, *settings]
    ]
    weights = [weight for weight, _, _ in believed_of(cluster, settings, launches).mixture]

    assert 1 < len(weights) < 16
    assert min(weights) >= 0.02 * max(weights)
    assert sum(weights) == pytest.approx(1)


def test_before_anything_was_measured_a_running_launch_changes_no_expectation(cluster):
    settings, launches = some_launches()
    calls = tuple(MessageCalls(message=m, calls_per_step=1.0) for m in MESSAGES)
    workload = Workload(name="w", messages=calls, provenance=Provenance(source="test"))
    model = Model(settings, workload, cluster)

    alone, beside = (model.compute_posterior(observe(launches[:1]), running) for running in ((), settings[:1]))

    np.testing.assert_allclose(beside.mean, alone.mean, atol=1e-6)
    assert (beside.variance[0] < alone.variance[0]).all()
    assert not beside.measured.any()


def test_repeats_that_differ_much_raise_the_noise_of_the_model(cluster):
    quiet, loud = (believed_of(cluster, *some_launches(again=True, sigma=s)).noise for s in (0.02, 0.1))

    assert 0.01**2 < quiet < 0.035**2
    assert 0.06**2 < loud < 0.16**2


def test_a_lucky_launch_is_drawn_towards_its_likes(cluster):
    calls = tuple(MessageCalls(message=m, calls_per_step=1.0) for m in MESSAGES)
    workload = Workload(name="w", messages=calls, provenance=Provenance(source="test"))
    rings, _ = some_launches()
    us = [90.0, 91.0, 80.0, 89.0, 90.0]
    times = Times(
        by_setting={s: dict.fromkeys(MESSAGES, t) for s, t in zip([DEFAULT, *rings], [100.0, *us], strict=True)},
        launches=once([DEFAULT, *rings]),
        sigma=0.05,
    )

    expected = posterior_mean(times, workload, cluster)

    assert all(80.5 < expected.by_setting[rings[2]][m] < 90 for m in MESSAGES)
    assert expected.by_setting[DEFAULT] == times.by_setting[DEFAULT]
    again = replace(times, launches={**times.launches, rings[2]: {MESSAGES[0]: 30, **dict.fromkeys(MESSAGES[1:], 1)}})
    sure = posterior_mean(again, workload, cluster).by_setting[rings[2]]
    assert sure[MESSAGES[0]] == pytest.approx(80.0, rel=0.01), "policies showed it of this message"
    assert all(sure[m] == expected.by_setting[rings[2]][m] for m in MESSAGES[1:])
    assert posterior_mean(
        Times(by_setting={DEFAULT: times.default}, launches=once([DEFAULT])), workload, cluster
    ).default


def test_what_is_believed_is_computed_by_one_thread_whoever_asks(cluster, monkeypatch):
    """Several threads wait for each other on a busy node, and add up in an order that depends on the machine."""
    seen = []

    def blas_threads():
        ours = [library for library in threadpool_info() if re.search("numpy|scipy", library["filepath"])]
        return {library["num_threads"] for library in ours if library["user_api"] == "blas"}

    def watched(*arguments):
        seen.append(blas_threads())
        return neg_log_prior(*arguments)

    monkeypatch.setattr(module, "neg_log_prior", watched)
    with threadpool_limits(2, "blas"):
        believed_of(cluster, *some_launches(slow=2))
        assert blas_threads() == {2}, "what the caller does besides is not limited"
    assert seen
    assert all(threads == {1} for threads in seen)
