"""Ape-X: actors fill shards of a replay, a learner draws from all of them by priority."""

import sys

import covey
from covey import steps

DQN = covey.DQN.Config(
    lr=2e-3, gamma=0.98, n_step=1, dueling=False, target_every=20, eps_ladder=0.4
)
D4PG = covey.D4PG.Config(
    lr=1e-3, gamma=0.95, hidden=(64, 64), v_min=-250, v_max=0, target_every=1, tau=0.02,
    noise_low=0.1, noise_high=0.8,
)  # fmt: skip
DDPG = covey.DDPG.Config(
    lr=2e-3, gamma=0.95, hidden=(64, 64), loss="squared", target_every=1, tau=0.02,
    noise_low=0.1, noise_high=0.8, slope_limit=0,
)  # fmt: skip
TASKS = {  # algorithm, its settings, environment, the return to reach
    "dqn": (covey.DQN, DQN, "CartPole-v1", 475),
    "ddpg": (covey.DDPG, DDPG, "Pendulum-v1", -200),
    "d4pg": (covey.D4PG, D4PG, "Pendulum-v1", -200),
}


def program(name):
    algorithm, config, env_id, goal = TASKS[name]

    def main(team):
        env = covey.make_env(env_id, num_envs=4, seed=team.seed)
        agent = team.agent(algorithm, env, config)
        weights = team.latest("weights", agent)
        replay = team.replay("replay", agent, capacity=100_000, alpha=0.6)
        evaluator = covey.Evaluator(agent, env_id, episodes=20, seed=team.root_seed)

        with team.task() as task:
            task.use(steps.refresh(agent, weights), on="actor")
            task.use(steps.collect(env, agent, unroll=16), on="actor")
            task.use(steps.store(agent, replay), on="actor")
            task.use(steps.sample(replay, batch=64, reuse=16, warmup=1_000), on="learner")
            task.use(steps.learn(agent), on="learner")
            task.use(steps.revise(replay), on="learner")
            task.use(steps.publish(agent, weights), on="learner")
            task.use(steps.refresh(agent, weights), on="evaluator")
            task.use(steps.rest(team.waits), on="evaluator")
            task.use(steps.evaluate(task, evaluator, every=2_500, until=goal), on="evaluator")
            reason = task.run(env_steps=100_000)
        return reason, task.state()["env_steps"], replay.gauges()

    return main


if __name__ == "__main__":
    for name in sys.argv[1:] or TASKS:
        print(name, *covey.run(program(name), actor=2, learner=1, evaluator=1)[2])
