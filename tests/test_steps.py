from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from badenvs import Coin, Counting

import covey
from covey import steps
from covey.envs import make_env
from covey.evaluation import Evaluation
from covey.links.replay import Replay
from covey.steps import Collector
from covey.task import Task, declare
from covey.types import Learnt


class Clock:
    """Acts by the env step that it is told and writes it down; keeps what it saw."""

    def __init__(self, overlap=0):
        self.extra = {"at": np.dtype(np.int64), "half": np.dtype(np.float32)}
        self.overlap, self.told, self.saw = overlap, [], []

    def act(self, obs_B, env_step=0, greedy=False):
        assert not greedy
        self.told.append(env_step)
        self.saw.append(obs_B.copy())
        columns = {"at": np.full(len(obs_B), env_step), "half": obs_B[:, 2] / 2}
        return np.arange(len(obs_B)) % 2, columns


def collector(agent, num_envs=3, num_steps=4, length=5):
    return Collector(make_env(lambda: Counting(length=length), num_envs), agent, num_steps)


def test_act_is_told_the_env_step_of_each_step():
    agent = Clock()
    made = collector(agent)
    made.collect(0)
    made.collect(12)
    assert agent.told == [0, 3, 6, 9, 12, 15, 18, 21]


def test_act_sees_what_the_unroll_says_it_saw():
    agent = Clock()
    unroll = collector(agent).collect(0)
    assert (np.array(agent.saw) == unroll.obs_TB[:-1]).all()


def test_what_act_says_besides_is_recorded_in_its_own_type():
    unroll = collector(Clock()).collect(30)
    assert unroll.extra["at"].tolist() == [[30] * 3, [33] * 3, [36] * 3, [39] * 3]
    assert (unroll.extra["half"] == unroll.obs_TB[:-1, :, 2] / 2).all()
    assert (unroll.extra["at"].dtype, unroll.extra["half"].dtype) == (np.int64, np.float32)
    assert unroll.action_TB.tolist() == [[0, 1, 0]] * 4


def test_columns_have_their_types_and_shapes():
    u = Collector(make_env("Pendulum-v1", 2), Pushes(), 6).collect(0)
    assert (u.obs_TB.shape, u.action_TB.shape, u.reward_TB.shape) == ((7, 2, 3), (6, 2, 1), (6, 2))
    kinds = [x.dtype for x in (u.obs_TB, u.action_TB, u.reward_TB, u.discount_TB)]
    assert kinds == [np.float32] * 4
    assert u.last_TB.dtype == u.valid_TB.dtype == bool


class Pushes:
    overlap, extra = 0, {}

    def act(self, obs_B, env_step=0, greedy=False):
        return np.full((len(obs_B), 1), 0.5, np.float32), {}


def snapshot(unroll):
    columns = [unroll.obs_TB, unroll.action_TB, unroll.reward_TB, unroll.discount_TB,
               unroll.last_TB, unroll.valid_TB, *unroll.extra.values()]  # fmt: skip
    finals = [(f.t, f.b, f.obs.tobytes()) for f in unroll.finals]
    return [c.tobytes() for c in columns], finals


def poles(agent, kind):
    """CartPole as a vector environment, or one by one with episodes of 6 steps."""
    env = "CartPole-v1"
    if kind == "sync":
        env = partial(gym.make, "CartPole-v1", max_episode_steps=6)
    return Collector(make_env(env, 3), agent, 7)


@pytest.mark.parametrize("overlap", [0, 2, 9])  # 9: more than a whole unroll
@pytest.mark.parametrize("kind", ["vector", "sync"])
def test_a_restored_collector_goes_on_bit_for_bit(kind, overlap):
    first = poles(Clock(overlap), kind)
    for i in range(5):
        first.collect(21 * i)
    state = first.state()
    after = snapshot(first.collect(105)), snapshot(first.collect(126))
    assert (kind == "sync") == bool(after[0][1])  # cut episodes
    second = poles(Clock(overlap), kind)
    assert second.restore(state)  # which the first has not touched since
    assert (snapshot(second.collect(105)), snapshot(second.collect(126))) == after


@pytest.mark.parametrize("overlap", [0, 1, 3, 9])
def test_the_true_last_sight_of_every_cut_episode_in_an_unroll_is_there(overlap):
    made = collector(Clock(overlap), num_steps=4, length=5)
    for i in range(12):
        u = made.collect(12 * i)
        cut = {(int(t), int(b)) for t, b in np.argwhere(u.valid_TB & u.last_TB)}
        assert {(f.t, f.b) for f in u.finals} == cut
        assert len(u.finals) == len(cut)
        assert all(f.obs[1:].tolist() == [u.obs_TB[f.t, f.b, 1], 5] for f in u.finals)


def test_a_restored_collector_does_not_reset():
    first = collector(Clock(), length=50)
    first.collect(0)
    second = collector(Clock(), length=50)
    assert second.restore(first.state())
    assert second.collect(12).obs_TB[:, 0, 2].tolist() == [4, 5, 6, 7, 8]


def test_where_environments_cannot_come_back_new_episodes_begin():
    first = Collector(make_env(Coin, 2), Clock2(), 5)
    first.collect(0)
    second = Collector(make_env(Coin, 2), Clock2(), 5)
    assert second.restore(first.state()) is False
    unroll = second.collect(10)
    assert unroll.valid_TB.all()
    assert not unroll.finals
    assert not unroll.last_TB.any()  # 20 steps an episode: it began anew


class Clock2:
    overlap, extra = 0, {}

    def act(self, obs_B, env_step=0, greedy=False):
        return np.zeros(len(obs_B), np.int64), {}


def test_an_unroll_uses_the_same_arrays_every_round():
    made = collector(Clock())
    one, two = made.collect(0).obs_TB, made.collect(12).obs_TB
    assert one is two


# the verbs

ROWS = 6  # of one round below


class Learner:
    """Remembers what it was given; a loss is the mean of the batch."""

    def __init__(self, overlap=0):
        self.overlap, self.extra, self.updates, self.batches = overlap, {}, 0, []

    def act(self, obs_B, env_step=0, greedy=False):
        return np.zeros(len(obs_B), np.int64), {}

    def rows(self, unroll):
        return {"x": unroll.reward_TB[unroll.valid_TB]}

    def learn(self, batch):
        self.batches.append(batch)
        self.updates += 1
        return Learnt({"loss": float(batch["x"].mean()), "size": float(len(batch["x"]))})


def replayed(reuse, batch, warmup, rounds, capacity=10_000):
    """What there was after each round: rows added, rows drawn."""
    env, agent = make_env(Counting, 2), Learner()
    replay = Replay(capacity, np.random.default_rng(0))
    task, seen = Task(), []
    task.use(steps.collect(env, agent, ROWS // 2))
    task.use(steps.store(agent, replay))
    task.use(steps.sample(replay, batch, reuse, warmup))
    task.use(steps.learn(agent))
    task.use(lambda ctx: seen.append((replay.added, replay.drawn, ctx.stored, ctx.updates)))
    task.run(rounds=rounds)
    return agent, seen


@pytest.mark.parametrize("reuse", [0.25, 1, 2.5, 8])
@pytest.mark.parametrize("batch", [1, 7, 64])
@pytest.mark.parametrize("warmup", [0, 50])
def test_every_row_added_is_drawn_reuse_times_within_one_batch(reuse, batch, warmup):
    agent, seen = replayed(reuse, batch, warmup, rounds=60)
    for added, drawn, stored, updates in seen:
        due = max(0, added - warmup) * reuse
        assert due - batch < drawn <= due
        assert drawn == updates * batch
        assert stored == ROWS
    assert [row[0] for row in seen] == [ROWS * i for i in range(1, 61)]
    assert {len(b["x"]) for b in agent.batches} == {batch}


def test_nothing_is_learnt_before_warmup():
    _, seen = replayed(reuse=4, batch=2, warmup=20, rounds=8)
    assert [updates for *_, updates in seen[:3]] == [0, 0, 0]  # 6, 12, 18 rows
    assert seen[3][3] == (24 - 20) * 4 // 2


def test_a_full_replay_goes_on_being_drawn_at_the_same_rate():
    _, seen = replayed(reuse=1, batch=6, warmup=30, rounds=40, capacity=30)
    assert seen[-1][1] == 240 - 30


def test_batches_are_drawn_only_when_they_are_asked_for():
    replay = Replay(10, np.random.default_rng(0))
    replay.add({"x": np.arange(10)})
    task = Task()
    task.use(declare(lambda ctx: setattr(ctx, "stored", 10), reads=[], writes=["stored"]))
    task.use(steps.sample(replay, 2, reuse=1))
    task.use(lambda ctx: next(ctx.batches))
    task.run(rounds=1)
    assert replay.drawn == 2


def test_collect_counts_env_steps_and_tells_of_episodes():
    env, agent, seen = make_env(lambda: Counting(length=5), 3), Learner(), []
    task = Task()
    task.use(steps.collect(env, agent, 4))
    task.use(lambda ctx: seen.append((ctx.env_steps, [e.length for e in ctx.episodes])))
    task.run(rounds=3)
    assert seen == [(12, []), (24, [5, 5, 5]), (36, [5, 5, 5])]


def test_rows_are_the_newest_unroll_as_one_batch():
    env, agent = make_env(Counting, 2), Learner()
    task, losses = Task(), []
    task.use(steps.collect(env, agent, 5)).use(steps.rows(agent)).use(steps.learn(agent))
    task.use(lambda ctx: losses.append(ctx.losses))
    task.run(rounds=2)
    assert [sorted(b["x"].tolist()) for b in agent.batches] == [
        [1, 1, 2, 2, 3, 3, 4, 4, 5, 5], [11, 11, 12, 12, 13, 13, 14, 14, 15, 15],
    ]  # fmt: skip
    assert losses == [{"loss": 3, "size": 10}, {"loss": 13, "size": 10}]
    assert task.state()["updates"] == 2


def test_losses_are_the_mean_over_batches_and_empty_without_one():
    agent, task, losses = Learner(), Task(), []
    task.keep("batches")

    def batches(ctx):
        ctx.batches = [{"x": np.full(2, v)} for v in (1.0, 2.0, 6.0)] if ctx.rounds else []

    task.use(batches).use(steps.learn(agent)).use(lambda ctx: losses.append(ctx.losses))
    task.run(rounds=2)
    assert losses == [{}, {"loss": 3.0, "size": 2.0}]


@pytest.mark.parametrize(
    ("every", "before", "now", "over"),
    [
        (10, 0, 9, False), (10, 0, 10, True), (10, 9, 10, True), (10, 10, 19, False),
        (10, 10, 20, True), (10, 5, 95, True), (10, 10, 10, False), (0, 0, 10**9, False),
        (1, 3, 4, True),
    ],
)  # fmt: skip
def test_crossed(every, before, now, over):
    assert steps.crossed(every, before, now) is over


class Script:
    """An evaluator that gives what it is told to, in order."""

    def __init__(self, *means):
        self.means, self.numbers = list(means), []

    def evaluate(self, number):
        self.numbers.append(number)
        mean = self.means.pop(0)
        return Evaluation([] if mean is None else [mean], [1])


def evaluated(script, every=10, until=None, rounds=6, by=5):
    task, told = Task(), []

    def count(ctx):
        ctx.env_steps += by

    task.use(count).use(steps.evaluate(task, script, every, until))
    task.use(lambda ctx: told.append(ctx.get("evaluation") and ctx.evaluation.returns))
    return task.run(rounds=rounds), told


def test_evaluations_come_when_a_multiple_is_crossed():
    script = Script(1.0, 2.0, 3.0)
    assert evaluated(script) == ("rounds", [None, [1.0], None, [2.0], None, [3.0]])
    assert script.numbers == [10, 20, 30]
    assert evaluated(Script(1.0, 2.0), by=25, rounds=2)[1] == [[1.0], [2.0]]
    assert evaluated(Script(), every=0)[1] == [None] * 6


def test_only_two_good_evaluations_in_a_row_stop():
    script = Script(9.0, 4.0, 8.0, 5.0)  # good, then not; good, then good
    reason, told = evaluated(script, until=5.0)
    assert (reason, told) == ("solved", [None, [4.0], None, [5.0]])
    assert script.numbers == [10, 11, 20, 21]  # on different episodes
    assert evaluated(Script(4.9, 4.9, 4.9), until=5.0)[0] == "rounds"


def test_an_evaluation_that_was_stopped_solves_nothing():
    assert evaluated(Script(None, None, None), until=5.0)[0] == "rounds"
    assert evaluated(Script(9.0, None, 0.0, 0.0), until=5.0)[0] == "rounds"


def test_where_the_last_evaluation_was_is_kept():
    task = Task()
    script = Script(1.0)
    task.use(lambda ctx: setattr(ctx, "env_steps", ctx.env_steps + 5))
    task.use(steps.evaluate(task, script, 10))
    task.restore({"rounds": 0, "env_steps": 12, "updates": 0, "evaluated_at": 12})
    task.run(rounds=1)
    assert (script.numbers, task.state()["evaluated_at"]) == ([], 17)
    task.run(rounds=2)
    assert script.numbers == [22]


def test_a_checkpoint_sees_the_whole_round():
    task, seen = Task(), []
    task.keep("total", 0)

    def save():
        seen.append((task.state()["rounds"], task.state()["total"], task.state()["saved_at"]))

    task.use(lambda ctx: setattr(ctx, "env_steps", ctx.env_steps + 4))
    task.use(steps.checkpoint(task, save, 10))
    task.use(lambda ctx: setattr(ctx, "total", ctx.total + 100))  # after it in the round
    task.run(rounds=5)
    assert seen == [(3, 300, 12), (5, 500, 20)]


def test_a_report_is_told_of_every_round():
    told = []
    task = Task()
    task.use(steps.report(told.append))
    task.run(rounds=3)
    assert len(told) == 3
    assert list(task.timings()) == ["report"]


def test_every_verb_says_what_it_reads_and_writes():
    env, agent = make_env(Counting, 1), Learner()
    replay = Replay(10, np.random.default_rng(0))
    task = Task()
    for step in (steps.rows(agent), steps.store(agent, replay), steps.learn(agent)):
        with pytest.raises(covey.UserError, match="no step writes it"):
            Task().use(step).run(rounds=1)
    task.use(steps.collect(env, agent, 2)).use(steps.rows(agent)).use(steps.learn(agent))
    assert task.run(rounds=1) == "rounds"
