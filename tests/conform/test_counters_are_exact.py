"""Law 3: counters are exact whoever is killed, and a crossing is said once."""

from everywhere import Nemesis, slowly

EVERY, ROUNDS, KILLS = 10, 300, 30
COLUMNS = BEGUN, ENDED, SAID = range(3)


def adder(count, own):
    """A step that adds one, and counts for itself; a successor sees what its predecessor left."""
    counted = int(count._own.value)
    assert own[ENDED] <= counted <= own[BEGUN] <= own[ENDED] + 1
    own[BEGUN] = own[ENDED] = counted

    def add(ctx):
        own[BEGUN] += 1
        count.add(1)
        own[ENDED] += 1
        if count.crossed(EVERY):
            own[SAID] += 1

    return add


def counting(team):
    """Actors add, a learner looks on and kills them."""
    count, totals = team.count("n"), []
    log = team.block("log", {"log": ((team.size, 8), "i8")})["log"]
    nemesis, task = Nemesis(team, KILLS, "actor"), team.task()
    if team.plays("actor"):
        task.use(adder(count, log[team.rank]), on="actor")
        nemesis.live()
    task.use(lambda ctx: nemesis.act(), on="learner")
    task.use(lambda ctx: totals.append(count.total), on="learner")
    enough = team.plays("learner") and (lambda ctx: nemesis.over and count.total >= ROUNDS)
    task.run(until=enough or None)
    if not team.plays("learner"):
        return None
    team.await_others(20)
    assert totals == sorted(totals)
    return {"total": count.total, "log": log[:, : len(COLUMNS)].sum(0)}


@slowly
def test_a_total_is_every_add_that_came_back_and_a_crossing_is_said_once(everywhere):
    found = everywhere.light(counting, actor=3, learner=1)[-1]
    assert found["total"] == found["log"][BEGUN] == found["log"][ENDED] >= ROUNDS
    said, crossings = found["log"][SAID], found["total"] // EVERY
    if everywhere.engine == "inline":
        assert said == crossings
    # who is killed once it has announced a crossing says it to nobody; never is it said twice
    assert crossings - KILLS <= said <= crossings
