from math import isfinite

from covey.bench import weights


def test_the_figures_are_there_and_make_sense():
    figures = weights.measure(seconds=0.2)
    assert all(isfinite(value) and value >= 0 for value in figures.values())
    for size in weights.SIZES:
        assert figures[f"torn_{size}"] == 0
        assert figures[f"reads_{size}"] > 0
        assert 0 < figures[f"versions_per_second_{size}"] < 1.1 / weights.PERIOD
        assert figures[f"nothing_new_microseconds_{size}"] < figures[f"refresh_microseconds_{size}"]
        assert figures[f"refresh_of_memcpy_{size}"] > 0.2
    assert figures["refresh_microseconds_5.8MB"] > 10 * figures["refresh_microseconds_18kB"]


class Mixed:
    """Weights that are torn in every third read."""

    name = "weights"

    def __init__(self):
        self.reads = 0

    def read_again(self, into):
        self.reads += 1
        into["flat"][:] = self.reads % weights.KINDS
        into["updates"][...] = self.reads
        if self.reads % 3 == 0:
            into["flat"][-1] += 1
        return self.reads

    def gauges(self):
        return {"weights.retries": 0.0}


def test_so_many_reads_are_done_as_asked_for():
    pair = object.__new__(weights.Pair)
    pair.latest, pair.into = Mixed(), {"flat": weights.np.zeros(8), "updates": weights.np.array(0)}
    assert pair.read(0, reads=7)["reads"] == 7


def test_a_mixture_is_counted():
    pair = object.__new__(weights.Pair)
    pair.latest = Mixed()
    pair.into = {"flat": weights.np.zeros(8), "updates": weights.np.array(0)}
    assert pair.read(0, reads=30)["torn"] == 10
