"""Law 4: `latest` never mixes versions and never goes back."""

import numpy as np
from everywhere import Nemesis, slowly

SIZE, READS, KILLS, READERS = 100_000, 300, 25, 4
COLUMNS = READ, NEWEST = range(2)


def full_of(number):
    return {"a": np.full(SIZE, number, np.float32), "b": np.full(SIZE, number, np.float32)}


def publishing(team):
    """A learner publishes without a pause and is killed in the middle; actors read all the time."""
    link = team.latest("weights", full_of(0), publish=False)
    log = team.block("log", {"log": ((team.size, 8), "i8")})["log"]
    nemesis, task = Nemesis(team, KILLS, "learner", mean_wait=0.02), team.task()
    own, out = log[team.rank], full_of(0)

    def publish(ctx):
        number = link.version + 1
        assert link.publish(full_of(number)) == number

    def read(ctx):
        version = link.refresh(out)
        if version is None:
            return
        assert out["a"].min() == out["a"].max() == out["b"].min() == out["b"].max() == version
        assert own[NEWEST] < version == link.seen <= link.version
        own[READ] += 1
        own[NEWEST] = version

    if team.plays("learner"):
        nemesis.live()
    task.use(publish, on="learner")
    task.use(read, on="actor")
    task.use(lambda ctx: nemesis.act(), on="judge")
    actors = team.ranks("actor")

    def enough(ctx):
        return nemesis.over and log[actors, READ].min() >= READS / len(actors)

    task.run(until=enough if team.plays("judge") else None)
    return own[: len(COLUMNS)], link.version, team.generation


@slowly
def test_readers_see_whole_versions_in_order_while_the_writer_is_killed(everywhere):
    found = everywhere.light(
        publishing, replace=("learner",), learner=1, actor=READERS, judge=1
    )  # fmt: skip
    readers = found if everywhere.engine == "inline" else found[1:-1]
    for (read, newest), version, _ in readers:
        assert read >= READS / len(readers)
        assert read <= newest <= version
    if everywhere.engine == "processes":
        assert found[0][2] == KILLS
