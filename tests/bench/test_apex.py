from math import isfinite

from covey.bench import apex


def test_the_figures_are_there_and_make_sense():
    figures = apex.measure(seconds=0.2, paper_seconds=1.5, actors=3)
    assert all(isfinite(value) and value >= 0 for value in figures.values())
    assert 0 < figures["learner_of_in_memory"] < 1.5
    assert figures["actor_rows_per_second_meanwhile"] > 100
    assert figures["paper_actors"] == 3
    assert 0.2 < figures["paper_rows_in_of_ideal"] < 2  # chunks of 50 in a short time
    assert 0.2 < figures["paper_rows_out_of_paper"] < 1.1
    assert figures["paper_learner_mib_most"] < figures["paper_learner_mib_before"] + 64
