"""A task with middleware: Q-learning as functions of ctx, evaluated in a thread beside it."""

import covey
from covey import steps


def main(team):
    config = covey.DQN.Config(lr=2e-3, gamma=0.98, n_step=1, target_every=20)
    env = covey.make_env("CartPole-v1", num_envs=8, seed=team.seed)
    agent, watcher = (team.agent(covey.DQN, env, config) for _ in range(2))
    replay = team.replay("replay", capacity=50_000)
    evaluator = covey.Evaluator(watcher, "CartPole-v1", episodes=20, seed=team.root_seed)
    log = []

    def note(ctx):  # the front half begins the round, the back half ends it, whatever happens
        began = ctx.env_steps
        try:
            yield
        finally:
            log.append((began, ctx.env_steps, ctx.score))

    def refresh(ctx):  # the evaluator works on weights of its own
        ctx.due = ctx.shared.get("updates", 0) - ctx.evaluated >= 1_000
        if ctx.due:
            watcher.module.load_state_dict(agent.module.state_dict())
            ctx.evaluated = ctx.shared.updates

    def evaluate(ctx):
        if ctx.due:
            ctx.score = evaluator.evaluate(ctx.env_steps).return_mean
            if ctx.score >= 475:
                task.stop("solved")

    def train(ctx):
        for batch in ctx.batches:
            ctx.loss = agent.learn(batch).metrics["loss"]
        ctx.updates = agent.updates

    with team.task() as task:
        task.keep("evaluated", 0)
        task.keep("score", 0.0)
        task.share("updates")
        task.use(note)
        task.use(refresh, on="evaluator")
        task.overlap(evaluate, on="evaluator")
        task.use(steps.collect(env, agent, unroll=32), on="collector")
        task.use(steps.store(agent, replay), on="collector")
        task.use(steps.sample(replay, batch=64, reuse=16, warmup=1_000), on="learner")
        task.use(train, on="learner")
        reason = task.run(env_steps=150_000)
    for name, t in task.timings().items():
        print(f"{name:9} p50 {t['p50'] * 1e3:6.2f} ms  p99 {t['p99'] * 1e3:6.2f} ms")
    print(f"{reason} after {log[-1][1]:,} env steps")
    return reason, log, evaluator.evaluate(0).return_mean


if __name__ == "__main__":
    covey.run(main, seed=1)
