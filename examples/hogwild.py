"""Shared memory, Hogwild!: a shared counter, a shared network, then asynchronous Q-learning."""

import torch

import covey
from covey import steps
from covey.optim import Optimizer, flatten


def count(team):
    counter = team.count("iterations")
    for _ in range(10):
        counter.add(1)  # exact, without a lock, and whoever dies takes nothing along
    team.gather("all have counted")({})
    return counter.total


def network(team):
    apply = team.in_place()
    model = torch.nn.Linear(10, 4)
    weights = flatten(model, apply)  # in memory that all share, as are an optimizer's moments
    optimizer = Optimizer(weights, "sgd", lr=0.05, apply=apply, accumulate=10)
    x, target = torch.ones(1, 10), -torch.ones(1, 4)
    for _ in range(400):
        optimizer.step(torch.nn.functional.mse_loss(model(x), target))
    optimizer.flush()
    return model(x)[0].tolist()


def q_learning(team):
    config = covey.DQN.Config(
        n_step=5, lr=1e-3, gamma=0.98, dueling=False, target_every=100, eps_steps=20_000,
        eps_ends=(0.1, 0.01, 0.5), eps_chances=(0.4, 0.3, 0.3),
    )  # fmt: skip
    env = covey.make_env("CartPole-v1", num_envs=4, seed=team.seed)
    agent = team.agent(covey.DQN, env, config, apply=team.in_place())
    still = team.agent(covey.DQN, env, config)
    evaluator = covey.Evaluator(still, "CartPole-v1", episodes=20, seed=team.root_seed)

    with team.task() as task:
        task.use(steps.collect(env, agent, unroll=8), on="worker")
        task.use(steps.rows(agent), on="worker")
        task.use(steps.learn(agent), on="worker")
        task.use(steps.rest(team.waits), on="evaluator")
        task.use(steps.copy_weights(agent, still), on="evaluator")
        task.use(steps.evaluate(task, evaluator, every=2_500, until=475), on="evaluator")
        reason = task.run(env_steps=500_000)
    return reason, task.state()["env_steps"]


if __name__ == "__main__":
    print(covey.run(count, worker=4))
    print(covey.run(network, worker=4)[0])
    print(covey.run(q_learning, worker=4, evaluator=1)[0])
