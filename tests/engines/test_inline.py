"""One process plays every role."""

import pytest

import covey
from covey.engines import inline
from covey.errors import UserError


def test_main_runs_here_and_its_result_comes_back_as_it_is():
    thing = object()

    def main(team):
        assert (team.rank, team.size, team.generation, team.roles) == (0, 1, 0, None)
        assert team.plays("anything")
        return thing

    assert inline.run(main, seed=3, members={}) is thing
    assert covey.run(main) is thing
    assert covey.run(main, engine="inline") is thing


def test_what_is_told_is_heard():
    heard = []
    inline.run(
        lambda team: team.post.tell("hello", number=team.root_seed), seed=3, members={},
        hear=lambda kind, **what: heard.append((kind, what)),
    )  # fmt: skip
    assert heard == [("hello", {"number": 3})]


def test_members_are_refused_in_a_sentence():
    with pytest.raises(UserError) as caught:
        covey.run(lambda team: None, engine="inline", actor=2, learner=1)
    assert str(caught.value) == (
        "the engine inline is one process that plays every role, so actor=2, learner=1 has no "
        "meaning. Leave it out, or say engine='processes'."
    )


def test_memory_is_given_back_also_after_an_error():
    """The hygiene around every test looks for descriptors."""

    def main(team):
        team.count("n").add(3)
        assert team.count("n").total == 3
        team.block("b", {"x": ((4,), "i8")})
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        covey.run(main)


def test_an_error_is_the_users_own():
    def main(team):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        covey.run(main)


def test_numpy_uses_one_thread_and_is_as_before_afterwards():
    from threadpoolctl import threadpool_info

    def threads():
        return [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]

    before = threads()
    assert set(covey.run(lambda team: threads())) <= {1}
    assert threads() == before
