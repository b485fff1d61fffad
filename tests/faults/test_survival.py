"""Faults of every kind at random times: nothing torn, doubled, lost or left behind."""

import os

import numpy as np
import pytest
from lab import HANG_SECONDS, Stored, Streamed, recoveries, survive, verdict

SEED = int(os.environ.get("COVEY_FAULT_SEED", "1"))  # what the nemesis printed replays
carriers = pytest.mark.parametrize("how", [Streamed, Stored])


@carriers
def test_a_handful_of_faults_is_survived(how):
    found, events = survive(SEED, 14, how=how)
    verdict(found, events, 14)


@pytest.mark.slow
@carriers
def test_two_hundred_faults_of_two_hundred_are_survived(how):
    found, events = survive(SEED, 200, how=how)
    verdict(found, events, 200)
    killed = recoveries(found, "kill")
    assert np.median(killed) <= 0.1
    assert np.percentile(killed, 95) <= 0.5
    hung = recoveries(found, "stop", "hang")
    assert np.median(hung) <= HANG_SECONDS + 0.3
