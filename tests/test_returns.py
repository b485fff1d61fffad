"""Against the published definitions, walked through one environment and one step at a time."""

import numpy as np
import pytest

from covey.returns import double_q_target, gae, lambda_returns, n_step, vtrace

GAMMA = 0.9
SEEDS = [0, 1, 2, 3]


def episodes(seed, steps=14, envs=3):
    """reward, discount, last, value, next_value: a quarter of the steps end an episode."""
    rng = np.random.default_rng(seed)
    shape = (steps, envs)
    last = rng.random(shape) < 0.25
    terminated = last & (rng.random(shape) < 0.5)
    value, next_value = rng.normal(size=shape), rng.normal(size=shape)
    next_value[:-1] = np.where(last[:-1], next_value[:-1], value[1:])
    return rng.normal(size=shape), np.where(terminated, 0.0, 1.0), last, value, next_value


def column(*values):
    """One environment."""
    return np.array(values, np.float64)[:, None]


def flags(*values):
    return np.array(values, bool)[:, None]


def steps_left(last_T, t):
    """Steps from t to the end of its episode, or of the data."""
    for k, ended in enumerate(last_T[t:]):
        if ended:
            return k + 1
    return len(last_T) - t


def slow_return(reward_T, discount_T, t, n):
    """R and the weight of what follows, of exactly n steps."""
    if n == 0:
        return 0.0, 1.0
    later, weight = slow_return(reward_T, discount_T, t + 1, n - 1)
    return reward_T[t] + GAMMA * discount_T[t] * later, GAMMA * discount_T[t] * weight


def slow_gae(reward_T, discount_T, last_T, value_T, next_value_T, lambda_, t):
    """Schulman et al. 2016, eq. 16."""
    total = 0.0
    for k in range(steps_left(last_T, t)):
        s = t + k
        delta = reward_T[s] + GAMMA * discount_T[s] * next_value_T[s] - value_T[s]
        total += (GAMMA * lambda_) ** k * delta
    return total


def slow_lambda_return(reward_T, discount_T, last_T, next_value_T, lambda_, t):
    """Sutton and Barto, eq. 12.3: the weighted sum of all n-step returns to the end."""

    def g(n):
        total, weight = slow_return(reward_T, discount_T, t, n)
        return total + weight * next_value_T[t + n - 1]

    num = steps_left(last_T, t)
    inner = sum((1 - lambda_) * lambda_ ** (n - 1) * g(n) for n in range(1, num))
    return inner + lambda_ ** (num - 1) * g(num)


def slow_vtrace(rho_T, reward_T, discount_T, last_T, value_T, next_value_T, limits, s):
    """Espeholt et al. 2018, eq. 1: v_s = V(s) + sum gamma^{t-s} (c_s ... c_{t-1}) delta_t."""
    lambda_, rho_max, c_max = limits
    target = value_T[s]
    for t in range(s, s + steps_left(last_T, s)):
        product = 1.0
        for i in range(s, t):
            product *= GAMMA * lambda_ * min(c_max, rho_T[i])
        future = GAMMA * discount_T[t] * next_value_T[t]
        target += product * min(rho_max, rho_T[t]) * (reward_T[t] + future - value_T[t])
    return target


def each(shape):
    return [(t, b) for b in range(shape[1]) for t in range(shape[0])]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("n", [1, 2, 3, 5, 14])
def test_n_step_is_the_definition(seed, n):
    reward, discount, last, _, _ = episodes(seed)
    got = n_step(reward, discount, last, GAMMA, n)
    assert got.return_TB.shape == (14 - n + 1, 3)
    for t, b in each(got.return_TB.shape):
        length = min(n, steps_left(last[:, b], t))
        total, weight = slow_return(reward[:, b], discount[:, b], t, length)
        assert got.length_TB[t, b] == length
        assert got.return_TB[t, b] == pytest.approx(total, abs=1e-6)
        assert got.discount_TB[t, b] == pytest.approx(weight, abs=1e-6)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("lambda_", [0.0, 0.5, 0.95, 1.0])
def test_gae_is_the_definition(seed, lambda_):
    data = episodes(seed)
    got = gae(*data, GAMMA, lambda_)
    for t, b in each(got.shape):
        assert got[t, b] == pytest.approx(slow_gae(*(x[:, b] for x in data), lambda_, t))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("lambda_", [0.0, 0.5, 0.95, 1.0])
def test_lambda_return_is_the_definition(seed, lambda_):
    reward, discount, last, _, after = episodes(seed)
    got = lambda_returns(reward, discount, last, after, GAMMA, lambda_)
    for t, b in each(got.shape):
        one = [x[:, b] for x in (reward, discount, last, after)]
        assert got[t, b] == pytest.approx(slow_lambda_return(*one, lambda_, t))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("limits", [(1.0, 1.0, 1.0), (0.9, 1.0, 1.0), (1.0, 2.0, 0.7)])
def test_vtrace_is_the_definition(seed, limits):
    data = episodes(seed)
    reward, discount, last, value, after = data
    log_rho = np.random.default_rng(seed + 100).normal(size=reward.shape)
    got = vtrace(log_rho, *data, GAMMA, *limits)
    rho = np.exp(log_rho)
    for t, b in each(reward.shape):
        one = [x[:, b] for x in (rho, *data)]
        assert got.value_TB[t, b] == pytest.approx(slow_vtrace(*one, limits, t))
        ends = last[t, b] or t == len(reward) - 1
        following = after[t, b] if ends else slow_vtrace(*one, limits, t + 1)
        target = reward[t, b] + GAMMA * discount[t, b] * following
        wanted = min(limits[1], rho[t, b]) * (target - value[t, b])
        assert got.advantage_TB[t, b] == pytest.approx(wanted)


def test_vtrace_table_on_policy():
    zero, no_end = np.zeros((5, 1)), np.zeros((5, 1), bool)
    got = vtrace(zero, zero + 1, zero + 1, no_end, zero, zero, GAMMA)
    wanted = [4.0951, 3.439, 2.71, 1.9, 1.0]
    np.testing.assert_allclose(got.value_TB[:, 0], wanted, atol=1e-12)
    np.testing.assert_allclose(got.advantage_TB[:, 0], wanted, atol=1e-12)


def test_vtrace_table_off_policy():
    # rho = 1/2, 2 (cut to 1); deltas 0.5 (1 + .9*4 - 2) = 1.3 and 1 (3 + .9*10 - 4) = 8
    log_rho = np.log(column(0.5, 2.0))
    data = column(1, 3), column(1, 1), flags(0, 0), column(2, 4), column(4, 10)
    got = vtrace(log_rho, *data, GAMMA)
    np.testing.assert_allclose(got.value_TB[:, 0], [2 + 1.3 + 0.9 * 0.5 * 8, 12])
    np.testing.assert_allclose(got.advantage_TB[:, 0], [0.5 * (1 + 0.9 * 12 - 2), 8])


# four steps, rewards 1 2 3 4, the second ends its episode by termination or by truncation
ENDS = [(0.0, [1 + 1.8, 2, 3 + 3.6], [0, 0, 0.81]), (1.0, [2.8, 2, 6.6], [0.81, 0.9, 0.81])]


@pytest.mark.parametrize(("kept", "returns", "weights"), ENDS)
def test_n_step_table(kept, returns, weights):
    data = column(1, 2, 3, 4), column(1, kept, 1, 1), flags(0, 1, 0, 0)
    got = n_step(*data, GAMMA, 2)
    np.testing.assert_allclose(got.return_TB[:, 0], returns, rtol=1e-6)
    np.testing.assert_allclose(got.discount_TB[:, 0], weights, rtol=1e-6)
    assert got.length_TB[:, 0].tolist() == [2, 1, 2]


@pytest.mark.parametrize(
    ("kept", "wanted"), [(0.0, [1.9 - 0.225, -0.5]), (1.0, [1.9 + 0.45 * 8.5, 8.5])]
)
def test_gae_table(kept, wanted):
    # deltas: 1 + .9*2.5 - 1.35 = 1.9, then 2 + .9*kept*10 - 2.5 = -.5 or 8.5
    data = column(1, 2), column(1, kept), flags(0, 1), column(1.35, 2.5), column(2.5, 10)
    np.testing.assert_allclose(gae(*data, GAMMA, 0.5)[:, 0], wanted)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_estimators_agree_where_theory_says_so(seed):
    reward, discount, last, value, after = data = episodes(seed)
    full = lambda_returns(reward, discount, last, after, GAMMA, 1.0)
    np.testing.assert_allclose(gae(*data, GAMMA, 1.0), full - value)
    td_error = reward + GAMMA * discount * after - value
    np.testing.assert_allclose(gae(*data, GAMMA, 0.0), td_error)
    zero = np.zeros_like(reward)
    np.testing.assert_allclose(vtrace(zero, *data, GAMMA).value_TB, full)
    half = lambda_returns(reward, discount, last, after, GAMMA, 0.5)
    np.testing.assert_allclose(vtrace(zero, *data, GAMMA, 0.5).value_TB, half)
    np.testing.assert_allclose(gae(*data, GAMMA, 0.5), half - value)


@pytest.mark.parametrize("seed", SEEDS)
def test_full_return_is_the_longest_n_step_return(seed):
    reward, discount, last, _, after = episodes(seed)
    full = lambda_returns(reward, discount, last, after, GAMMA, 1.0)
    got = n_step(reward, discount, last, GAMMA, len(reward))
    for b in range(reward.shape[1]):
        end = got.length_TB[0, b] - 1
        wanted = got.return_TB[0, b] + got.discount_TB[0, b] * after[end, b]
        assert full[0, b] == pytest.approx(wanted, abs=1e-5)


def all_estimates(reward, discount, last, value, after):
    log_rho = np.sin(np.arange(reward.size)).reshape(reward.shape)
    yield from n_step(reward, discount, last, GAMMA, 1)
    yield from n_step(reward, discount, last, GAMMA, 3)
    yield gae(reward, discount, last, value, after, GAMMA, 0.95)
    yield lambda_returns(reward, discount, last, after, GAMMA, 0.95)
    yield from vtrace(log_rho, reward, discount, last, value, after, GAMMA)


@pytest.mark.parametrize("kept", [0.0, 1.0])
def test_nothing_crosses_the_end_of_an_episode(kept):
    reward, discount, last, value, after = episodes(7)
    last[:], discount[:], last[6], discount[6] = False, 1.0, True, kept
    before = list(all_estimates(reward, discount, last, value, after))
    for x in (reward, value, after):
        x[7:] += 1000.0
    for old, new in zip(before, all_estimates(reward, discount, last, value, after), strict=True):
        np.testing.assert_array_equal(old[:7], new[:7])


def test_termination_ignores_the_next_value_and_truncation_uses_it():
    for kept, moved in ((0.0, 0.0), (1.0, 90.0)):
        data = [column(1, 2), column(1, kept), flags(0, 1), column(0, 0), column(0, 0)]
        old = gae(*data, GAMMA, 1.0)
        data[4] = column(0, 100)
        np.testing.assert_allclose((gae(*data, GAMMA, 1.0) - old)[:, 0], [0.9 * moved, moved])


def test_one_row():
    data = column(2), column(1), flags(0), column(1), column(10)
    assert [float(x[0, 0]) for x in n_step(*data[:3], 0.5, 1)] == [2.0, 0.5, 1.0]
    assert gae(*data, 0.5, 0.9).tolist() == [[6.0]]
    assert lambda_returns(*data[:3], data[4], 0.5, 0.9).tolist() == [[7.0]]
    got = vtrace(column(0), *data, 0.5)
    assert (got.value_TB.tolist(), got.advantage_TB.tolist()) == ([[7.0]], [[6.0]])


def test_a_window_longer_than_the_data_is_refused():
    with pytest.raises(AssertionError, match="2 steps hold no window of 3"):
        n_step(column(1, 2), column(1, 1), flags(0, 0), GAMMA, 3)


@pytest.mark.parametrize("name", ["n_step", "gae", "lambda_returns", "vtrace"])
def test_float32_stays_float32(name):
    data = [x if x.dtype == bool else x.astype(np.float32) for x in episodes(0)]
    reward, discount, last, _, after = data
    got = {
        "n_step": lambda: n_step(reward, discount, last, GAMMA, 3).return_TB,
        "gae": lambda: gae(*data, GAMMA, 0.95),
        "lambda_returns": lambda: lambda_returns(reward, discount, last, after, GAMMA, 0.95),
        "vtrace": lambda: vtrace(np.zeros_like(reward), *data, GAMMA, 0.95).advantage_TB,
    }[name]()
    assert got.dtype == np.float32


def test_double_q_target_values_what_the_chooser_picks():
    chooser = np.array([[1.0, 2.0], [5.0, 4.0]])
    target_net = np.array([[10.0, 20.0], [30.0, 40.0]])
    got = double_q_target(np.array([1.0, 2.0]), np.array([0.5, 0.0]), chooser, target_net)
    assert got.tolist() == [1 + 0.5 * 20, 2]
    same = double_q_target(np.ones(2), np.ones(2), target_net, target_net)
    assert same.tolist() == [21.0, 41.0]
