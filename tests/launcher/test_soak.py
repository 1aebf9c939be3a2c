"""What `collectlab bench soak` takes at full length, in short: nothing is left of many runs and random kills."""

import random

import pytest

from collectlab.bench import soak

RUNS = {"local": (3, 100), "openmpi": (1, 60)}
ANY = random.SystemRandom().randrange(10**6)  # other moments each time; a failure names its seed


def test_many_runs_leave_nothing(each_site):
    cold, warm = RUNS[each_site]
    for left in (soak.cold(each_site, cold), soak.warm(each_site, warm)):
        assert left.pop("memory") < 8, "MiB"
        assert left == {"processes": 0, "descriptors": 0, "files": 0}


@pytest.mark.parametrize("number", range(4))
def test_a_random_kill_leaves_nothing(number, each_site):
    assert soak.kill(each_site, ANY + number) == ""


def test_the_tail_of_many_lines_is_kept_and_a_large_result_is_not_copied(each_site):
    assert soak.lines(each_site, 100_000)[0] == 100_000
    assert max(soak.array(each_site, 128 << 20).values()) < 0.1
