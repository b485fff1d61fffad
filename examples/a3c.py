"""A3C: workers push gradients to one owner, who applies them and publishes the weights."""

import torch
from torch import nn

import covey
from covey import steps


class ActorCritic(nn.Module):
    """Any module that gives (logits, values) will do."""

    def __init__(self):
        super().__init__()
        self.actor = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 2))
        self.critic = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 1))

    def forward(self, obs):
        return self.actor(obs), self.critic(obs).squeeze(-1)


def main(team):
    config = covey.A2C.Config(
        optimizer="adam", lr=2e-3, gamma=0.98, lambda_=0.9, scale_advantage=True
    )
    env = covey.make_env("CartPole-v1", num_envs=4, seed=team.seed)
    torch.manual_seed(team.root_seed)
    gradients = team.gradients(every=1, max_lag=100)
    agent = team.agent(covey.A2C, env, config, network=ActorCritic(), apply=gradients)
    weights = team.latest("weights", agent)
    evaluator = covey.Evaluator(agent, "CartPole-v1", episodes=20, seed=team.root_seed)

    with team.task() as task:
        task.use(steps.refresh(agent, weights), on="worker")
        task.use(steps.collect(env, agent, unroll=32), on="worker")
        task.use(steps.rows(agent), on="worker")
        task.use(steps.learn(agent), on="worker")
        task.use(steps.apply_pushed(agent, gradients), on="learner")
        task.use(steps.publish(agent, weights), on="learner")
        task.use(steps.refresh(agent, weights), on="evaluator")
        task.use(steps.rest(team.waits), on="evaluator")
        task.use(steps.evaluate(task, evaluator, every=2_500, until=475), on="evaluator")
        reason = task.run(env_steps=300_000)
    return reason, task.state()["env_steps"], gradients.gauges()


if __name__ == "__main__":
    reason, env_steps, gauges = covey.run(main, worker=3, learner=1, evaluator=1)[3]
    print(reason, env_steps, {name: int(value) for name, value in gauges.items()})
