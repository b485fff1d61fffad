"""Law 7: pushed = applied + refused + pending, whenever nobody pushes, whoever was killed."""

import time

import numpy as np
import pytest
from everywhere import Nemesis, slowly

SIZE, WORKERS, KILLS, TURNS, ROUNDS = 500, 3, 20, 12, 200
TURN, VERSION = 0, 1


class Program:
    """Workers push in odd turns, an owner applies; a judge kills both and balances in even ones."""

    def __init__(self, team, every, max_lag):
        self.team, self.gradients = (
            team, team.gradient_link("g", SIZE, every, max_lag, "worker", "learner")
        )  # fmt: skip
        words = team.block("words", {"common": ((2, 8), "i8"), "idle": ((team.size, 8), "i8")})
        self.common, self.idle_N = words["common"][:, 0], words["idle"][:, 0]
        self.nemesis, self.accounts = Nemesis(team, KILLS, "worker", "learner"), []
        if team.plays("learner") and team.generation:
            self.gradients.settle()
        self.nemesis.live()

    def push(self, ctx):
        turn = int(self.common[TURN])
        if turn % 2:
            self.gradients.push(np.ones(SIZE, np.float32), int(self.common[VERSION]))
        else:
            self.idle_N[self.team.rank] = turn
            self.team.waits.nap(0.001)

    def apply(self, ctx):
        mean = self.gradients.collect(int(self.common[VERSION]))
        if mean is not None:
            assert (mean == 1).all()
            self.common[VERSION] += 1
            self.gradients.applied()

    def judge(self, ctx):
        self.common[TURN] += 1
        until = time.monotonic() + 0.02
        while time.monotonic() < until:
            self.nemesis.act()
        self.common[TURN] += 1
        self.accounts.append(self.settled())

    def settled(self, seconds=20):
        """The account once nobody pushes and the owner has taken in what there is."""
        ranks, deadline = self.team.ranks("worker"), time.monotonic() + seconds
        while True:
            idle = (self.idle_N[ranks] == self.common[TURN]).all()
            found = list(self.gradients.account().values())
            if idle and not self.gradients._stream.depth and found[0] == sum(found[1:]):
                return found
            assert time.monotonic() < deadline, found
            self.team.pulse.beat()

    def enough(self, ctx):
        return self.nemesis.over and ctx.rounds >= TURNS


def pushing(every, max_lag):
    def main(team):
        program, task = Program(team, every, max_lag), team.task()
        task.use(program.push, on="worker").use(program.apply, on="learner")
        if team.roles is None:
            program.common[TURN] = 1
            task.use(lambda ctx: program.accounts.append(program.gradients.account()))
            task.run(rounds=ROUNDS)
            return [list(of.values()) for of in program.accounts]
        task.use(program.judge, on="judge")
        task.run(until=program.enough if team.plays("judge") else None)
        return program.accounts

    return main


@slowly
@pytest.mark.parametrize(("every", "max_lag"), [(1, 0), (4, 1), (2, None)])
def test_pushed_is_applied_or_refused_or_pending(everywhere, every, max_lag):
    found = everywhere.light(
        pushing(every, max_lag), replace=("worker", "learner"), worker=WORKERS, learner=1, judge=1
    )[-1]  # fmt: skip
    assert len(found) >= TURNS
    assert all(pushed == sum(others) for pushed, *others in found)
    assert found == sorted(found)
    pushed, applied, refused, pending = found[-1]
    assert pushed > 100
    assert applied > 0
    assert 0 <= pending <= every  # the owner may be applying the newest mean
    if everywhere.engine == "inline":
        assert (applied % every, refused) == (0, 0)
    elif max_lag == 0:
        assert refused > 0
