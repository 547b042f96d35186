"""When sessions start, for every arrival process."""

from itertools import pairwise

import pytest

from harness.traffic.arrivals import ARRIVALS, offsets_ns
from harness.traffic.load import Arrival

every_open_loop = pytest.mark.parametrize("kind", sorted(set(ARRIVALS) - {"closed"}))


@pytest.mark.parametrize("kind", sorted(ARRIVALS))
def test_equal_seeds_give_equal_offsets_one_a_session(kind: str) -> None:
    process = Arrival(kind, concurrency=2, rate_rps=5.0)
    assert offsets_ns(process, 50, seed=1) == offsets_ns(process, 50, seed=1)
    assert len(offsets_ns(process, 50, seed=1)) == 50


@every_open_loop
def test_offsets_never_go_back_and_attain_the_rate(kind: str) -> None:
    offsets = [at for at in offsets_ns(Arrival(kind, rate_rps=5.0), 20_000, seed=1) if at is not None]
    assert offsets == sorted(offsets)
    assert offsets[-1] / 1e9 == pytest.approx(20_000 / 5.0, rel=0.03)


def test_poisson_gaps_are_exponential() -> None:
    offsets = [at or 0 for at in offsets_ns(Arrival("poisson", rate_rps=5.0), 20_000, seed=1)]
    gaps = [(b - a) / 1e9 for a, b in pairwise(offsets)]
    mean = sum(gaps) / len(gaps)
    variation = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5 / mean
    assert variation == pytest.approx(1.0, abs=0.05)
    assert offsets[:5] != offsets_ns(Arrival("poisson", rate_rps=5.0), 5, seed=2)


def test_constant_gaps_are_equal() -> None:
    assert offsets_ns(Arrival("constant", rate_rps=4.0), 4, seed=1) == [0, 250_000_000, 500_000_000, 750_000_000]


def test_a_closed_loop_has_no_due_times() -> None:
    assert offsets_ns(Arrival("closed", concurrency=3), 3, seed=1) == [None, None, None]
