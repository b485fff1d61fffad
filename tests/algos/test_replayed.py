"""What holds for every algorithm that learns rows drawn from a replay."""

import gc

import numpy as np
import pytest
import torch
from seats import seats

from covey import catalog, checkpoint
from covey.optim import ToSelf, follow
from covey.steps import example_rows
from covey.types import Leaf, Spec

SPECS = {
    "discrete": Spec({"": Leaf((4,), np.dtype(np.float32))}, num_actions=3, action_dim=0),
    "continuous": Spec({"": Leaf((4,), np.dtype(np.float32))}, num_actions=0, action_dim=2),
}
LOUD = {"gamma": 0.9, "n_step": 3, "hidden": (16,), "max_norm": 1e9}
CASES = {
    "dqn": {"double": True},
    "qrdqn": {"double": True, "quantiles": 8},
    "ddpg": {},
    "d4pg": {"head": "categorical", "atoms": 11, "v_min": -5, "v_max": 5},
    "d4pg quantile": {"head": "quantile", "atoms": 8},
}
every = pytest.mark.parametrize("case", CASES)


def target(made):
    return getattr(made, "pair", made).target


def agent(case, seed=0, loud=True, **more):
    algorithm = catalog.algorithm(case.split()[0])
    spec = SPECS[algorithm.actions[0]]
    kept = {name: more.pop(name) for name in ("apply", "place") if name in more}
    torch.manual_seed(seed)
    config = algorithm.Config(**{**LOUD, **CASES[case], **more})
    made = algorithm(spec, config, np.random.default_rng(seed), **kept)
    if loud:  # last layers that begin near 0 would make every mistake look small
        with torch.no_grad():
            made.optimizer.flat.mul_(2)
        follow(target(made), made.module, 1.0)
    return made


def rows_of(made, tell, seed=0):
    return made.rows(tell(made.spec, seed=seed).unroll)


def priorities(made, unroll):
    """As an actor finds them: with what it said when it acted."""
    if made.extra:
        said = [made.act(obs_B, greedy=True)[1]["q"] for obs_B in unroll.obs_TB[:-1]]
        unroll.extra["q"] = np.stack(said)
    return made.priorities(unroll, made.rows(unroll))


def gradient(made, rows):
    made.learn(rows)
    return made.optimizer.flat.grad.clone()


@every
def test_rows_are_all_whole_windows_and_bootstrap_where_they_should(case, tell):
    made = agent(case)
    story = tell(made.spec, same_step=True, seed=2)
    rows = made.rows(story.unroll)
    obs, action, total, weight, after = map(np.array, zip(*story.windows(3, 0.9), strict=True))
    np.testing.assert_array_equal(rows["obs"], obs)
    np.testing.assert_array_equal(rows["action"], action)
    np.testing.assert_allclose(rows["return"], total, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(rows["discount"], weight, rtol=1e-6)
    kept = weight > 0  # cut episodes too: they are worth what their true last sight promises
    np.testing.assert_array_equal(rows["next_obs"][kept], after[kept])


@pytest.mark.parametrize("same_step", [True, False])
@every
def test_an_actor_gives_the_priorities_that_learning_then_finds(case, same_step, tell):
    made = agent(case)
    unroll = tell(made.spec, same_step=same_step, seed=2).unroll
    rows = made.rows(unroll)
    first = priorities(made, unroll)
    said = made.learn(rows)
    assert first.shape == rows["return"].shape
    assert first.min() >= 0 < first.max()
    np.testing.assert_allclose(said.priority_N, first, rtol=1e-4, atol=1e-4)


@every
def test_an_actor_that_has_only_the_published_weights_says_the_same(case, tell):
    learner, actor = agent(case, 1), agent(case, 2)
    unroll = tell(learner.spec).unroll
    rows = learner.rows(unroll)
    for _ in range(3):
        learner.learn(rows)
    assert not np.allclose(priorities(learner, unroll), priorities(actor, unroll))
    into = actor.weights()
    for name, value in learner.weights().items():
        into[name][...] = value
    actor.load(into)
    np.testing.assert_array_equal(priorities(learner, unroll), priorities(actor, unroll))
    one, other = (m.act(rows["obs"], greedy=True)[0] for m in (learner, actor))
    np.testing.assert_array_equal(one, other)
    assert actor.updates == 3


@every
def test_nothing_looks_past_a_termination(case, tell):
    rows = rows_of(agent(case), tell)
    over = rows["discount"] == 0
    assert 0 < over.sum() < len(over)
    changed = {**rows, "next_obs": np.where(over[:, None], np.float32(7), rows["next_obs"])}
    one, other = agent(case), agent(case)
    close = {"rtol": 1e-5, "atol": 1e-6}  # probabilities of a whole sum to 1 only so nearly
    np.testing.assert_allclose(one.learn(rows).priority_N, other.learn(changed).priority_N, **close)
    torch.testing.assert_close(one.optimizer.flat.grad, other.optimizer.flat.grad, **close)


@every
def test_each_row_has_its_own_weight(case, tell):
    """Of the loss alone: the actor's part of the gradient is not weighted."""
    rows = rows_of(agent(case), tell)
    num = len(rows["return"])
    plain = gradient(agent(case), rows)
    ones = gradient(agent(case), {**rows, "weight": np.ones(num, np.float32)})
    assert torch.equal(plain, ones)
    none = gradient(agent(case), {**rows, "weight": np.zeros(num, np.float32)})
    weight = np.linspace(0, 2, num, dtype=np.float32)
    parts = [
        weight[i] / num * (gradient(agent(case), {**rows, "weight": num * one}) - none)
        for i, one in enumerate(np.eye(num, dtype=np.float32))
    ]
    got = gradient(agent(case), {**rows, "weight": weight})
    torch.testing.assert_close(got - none, sum(parts), rtol=1e-3, atol=1e-5)


@every
def test_weights_do_not_change_the_errors_told(case, tell):
    rows = rows_of(agent(case), tell)
    weight = np.linspace(0, 2, len(rows["return"]), dtype=np.float32)
    one, other = agent(case).learn(rows), agent(case).learn({**rows, "weight": weight})
    np.testing.assert_array_equal(one.priority_N, other.priority_N)


@every
def test_nothing_of_a_batch_is_kept(case, tell):
    """What learning tells is numbers: a tensor would keep its whole graph."""
    made, told = agent(case), []
    rows = rows_of(made, tell)

    def learn(times):
        for _ in range(times):
            metrics, priority = made.learn(rows)
            assert type(priority) is np.ndarray
            told.append((metrics, priority.copy()))

    def alive():
        gc.collect()
        return sum(issubclass(type(x), torch.Tensor) for x in gc.get_objects())

    learn(3)
    before = alive()
    learn(20)
    assert alive() == before
    assert {type(value) for metrics, _ in told for value in metrics.values()} == {float}


class Once(ToSelf):
    """Counts who is asked to apply."""

    def __init__(self):
        super().__init__()
        self.applied = 0

    def apply(self, optimizer, gradient):
        self.applied += 1
        return super().apply(optimizer, gradient)


@every
def test_learning_is_one_step_of_one_optimizer(case, tell):
    once = Once()
    made = agent(case, apply=once)
    before = made.optimizer.flat.detach().clone()
    made.learn(rows_of(made, tell))
    assert (once.applied, made.updates) == (1, 1)
    assert sum(p.numel() for p in made.module.parameters()) == len(before)
    assert (made.optimizer.flat != before).float().mean() > 0.5


@every
def test_workers_in_place_share_weights_and_targets(case, tell):
    settings = {"target_every": 2, "lr": 1e-3}
    one, two = (
        agent(case, seed, loud=seed == 0, apply=team.in_place(), **settings)
        for seed, team in enumerate(seats(worker=2))
    )
    alone = agent(case, **settings)
    for number in range(6):
        batch = rows_of(alone, tell, seed=number)
        (one, two)[number % 2].learn(batch)
        alone.learn(batch)
        assert one.updates == two.updates == number + 1
    assert torch.equal(one.optimizer.flat, two.optimizer.flat)
    torch.testing.assert_close(one.optimizer.flat, alone.optimizer.flat, rtol=1e-4, atol=1e-6)
    for a, b, c in zip(*(target(made).parameters() for made in (one, two, alone)), strict=True):
        assert torch.equal(a, b)
        torch.testing.assert_close(a, c, rtol=1e-4, atol=1e-6)


@every
def test_a_saved_agent_goes_on_bit_for_bit(case, tell, tmp_path):
    settings = {"normalize": True, "target_every": 4, "anneal_updates": 50}
    first, second = agent(case, 1, **settings), agent(case, 2, **settings)
    rows = [rows_of(first, tell, seed) for seed in range(12)]
    obs = rows[0]["obs"]
    for one in rows[:6]:
        first.learn(one)
        first.act(obs, 50)
    second.restore(checkpoint.load(checkpoint.save(tmp_path, 1, first.state(), {})).tree)
    for one in rows[6:]:
        assert first.learn(one).metrics == second.learn(one).metrics
        np.testing.assert_array_equal(first.act(obs, 50)[0], second.act(obs, 50)[0])
    assert torch.equal(first.optimizer.flat, second.optimizer.flat)
    assert first.updates == second.updates == 12


@every
def test_the_normaliser_learns_after_the_update(case, tell):
    made = agent(case, normalize=True)
    plain = agent(case)
    rows = rows_of(made, tell)
    loss = plain.learn(rows).metrics["loss"]  # with statistics of nothing
    assert made.learn(rows).metrics["loss"] == pytest.approx(loss, rel=1e-5)
    moments = [v for k, v in made.module.named_buffers() if k.endswith("moments")]
    for count, mean, _ in moments:
        assert count.tolist() == [len(rows["obs"])] * 4
        np.testing.assert_allclose(mean.numpy(), rows["obs"].mean(0), atol=1e-6)
    assert len(moments) == (2 if made.spec.action_dim else 1)


@every
def test_example_rows_have_the_form_of_real_ones(case, tell):
    made = agent(case)
    example, real = example_rows(made), rows_of(made, tell)
    assert example.keys() == real.keys()
    for name, column in example.items():
        assert (column.dtype, column.shape[1:]) == (real[name].dtype, real[name].shape[1:])


LADDER = {"dqn": {"eps_ladder": 0.4}, "qrdqn": {"eps_ladder": 0.4}}


@every
def test_every_environment_of_every_actor_explores_by_its_own_amount(case):
    more = LADDER.get(case, {"noise_low": 0.0, "noise_high": 0.5})
    shares, actors, envs = [], 3, 2
    for index in range(actors):
        made = agent(case, place=(index, actors), **more)
        obs = np.random.default_rng(0).normal(size=(envs, 4)).astype(np.float32)
        best = made.act(obs, greedy=True)[0]
        taken = np.array([made.act(obs, 10**9)[0] for _ in range(4000)])
        if case in LADDER:
            shares += ((taken != best).mean(axis=0) * 3 / 2).tolist()
        else:
            inside = np.abs(taken) < 1  # what was not clipped on its way
            assert inside.mean() > 0.5
            shares += np.median(np.abs(taken - best), axis=(0, 2)).tolist()
    rung = np.arange(actors * envs) / (actors * envs - 1)
    if case in LADDER:
        assert shares == pytest.approx((0.4 ** (1 + 7 * rung)).tolist(), abs=0.03)
    else:  # the median of |normal| is 0.6745 deviations
        assert shares[0] == 0
        assert shares == pytest.approx((0.6745 * 0.5 * rung).tolist(), abs=0.03)
