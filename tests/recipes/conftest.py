"""The members of a recipe's team, each with its session, all in this process."""

from contextlib import ExitStack

import pytest
from badenvs import Counting
from seats import seats
from threadpoolctl import threadpool_limits

from covey import catalog
from covey.session import Job, Session

TINY = {
    "num_envs": 3, "unroll": 8, "eval_every": 0, "checkpoint_every": 0, "eval_episodes": 1,
    "until": None, "hidden": [8],
}  # fmt: skip


@pytest.fixture
def sessions(tmp_path):
    """By name, as `worker 0`; the keeper's is opened first, since nobody begins before it."""
    with ExitStack() as stack:
        stack.enter_context(threadpool_limits(1, "blas"))  # what each session would put back

        def make(algo, recipe, workers=2, **settings):
            found = catalog.recipe(recipe)
            config = catalog.configure(
                algo, "Counting", recipe, settings={**TINY, "workers": workers, **settings}
            )
            teams = seats(config.seed, **catalog.num_members(config, found))
            job, opened = Job(config, tmp_path, Counting), {}
            for team in sorted(teams, key=lambda team: team.role != found.keeper):
                stack.callback(team.close)
                opened[team.name] = stack.enter_context(Session(job, team))
            return opened

        yield make
