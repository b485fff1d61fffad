import time

from covey.bench import turns


def test_the_best_is_the_fastest_call():
    naps = iter([0.03, 0.02, 0.001] + [0.02] * 50)
    assert 0.001 <= turns.best(lambda: time.sleep(next(naps)), seconds=0.1) < 0.015


def test_what_is_compared_takes_turns():
    said = []

    def speaker(name):
        def speak():
            said.append(name)
            return float(len(said))

        return speak

    found = turns.in_turns({"ours": speaker("ours"), "limit": speaker("limit")}, seconds=0)
    assert said == ["ours", "limit"]
    assert found == {"ours": [1.0], "limit": [2.0]}
    found = turns.in_turns({"ours": speaker("ours"), "limit": speaker("limit")}, seconds=0.001)
    assert said[::2] == ["ours"] * (1 + len(found["ours"]))
    assert len(found["ours"]) == len(found["limit"])


def test_what_is_typical_is_not_moved_by_turns_that_were_disturbed():
    assert turns.typical([5.0]) == 5.0
    assert turns.typical([3.0, 1.0, 2.0, 90.0, 80.0, 70.0]) == 2.0
    assert turns.ratio([4.0, 4.0, 90.0, 4.0], [2.0, 80.0, 2.0, 2.0]) == 2.0
