"""From the server's sockets to the verdict: what a faulty server is found to be, and a sound one."""

from collections.abc import Callable
from typing import Any

import pytest
from mimic import MimicServer

from bench.analysis.determinism import determinism as determinism_of
from bench.analysis.fidelity import fidelity as fidelity_of
from bench.analysis.load import LaunchRecord
from bench.analysis.output_check import band, check
from bench.analysis.result import OutputCheckResult
from harness.accuracy import determinism, greedy, output_check
from harness.accuracy.fidelity_options import FidelityOptions
from harness.backends import backend_class
from harness.backends.interface import EngineState
from harness.model import Model

OPTIONS = FidelityOptions(texts=2, positions=24, greedy_prompts=2, greedy_tokens=5, repeats=2)
TOLERANCES = {"nll_increase_nats": 0.3, "top1_agreement_min": 0.5}
Launched = Callable[..., LaunchRecord]


@pytest.fixture
def launched(server: MimicServer, model: Model) -> Launched:
    """A launch of the server with these faults, as its record is read back."""

    def launch(faults: str, *, replica: int = 1, seed: int = 3, state: str = "measured") -> LaunchRecord:
        where = (backend_class("llama-cpp")(), server.url(f"reads+{faults}"), "m", model)
        size: dict[str, Any] = {"context_tokens": 640, "seed": seed, "options": OPTIONS}
        record = output_check.take(*where, **size, state=EngineState)
        said = {
            "greedy": greedy.take(*where, **size),
            "determinism": determinism.take(*where, **size, beside=2, state=EngineState),
        }
        facts = {"deployment": faults, "replica": replica, "state": state, "reason": None}
        return LaunchRecord(faults, 0, facts, {}, {}, record, None, said)

    return launch


def judged(candidate: LaunchRecord, baseline: list[LaunchRecord]) -> OutputCheckResult | None:
    return check([candidate], baseline, band(baseline, TOLERANCES))


@pytest.mark.parametrize(
    ("faults", "state", "says"),
    [
        ("caches", "sound", "agrees at 100%"),
        ("broken", "broken", "NLL"),
        ("late-broken", "broken", "NLL"),
        ("no-logprobs", "broken", "no log-probabilities"),
        ("nan", "broken", "no usable log-probabilities"),
        ("error", "broken", "HTTP 500"),
        ("dies", "broken", "connection broke"),
    ],
)
def test_what_a_server_is_found_to_be(launched: Launched, faults: str, state: str, says: str) -> None:
    result = judged(launched(faults), [launched("sound"), launched("sound", replica=2)])
    assert result is not None
    assert result.state == state
    assert says in result.reason


def test_a_server_whose_process_died_says_nothing_of_its_cache(launched: Launched) -> None:
    assert judged(launched("dies", state="failed"), [launched("sound")]) is None


def test_another_seed_is_not_compared(launched: Launched) -> None:
    result = judged(launched("caches", seed=4), [launched("sound")])
    assert result is not None
    assert result.state == "not compared"


def test_late_faults_show_in_the_late_stretch(launched: Launched) -> None:
    found = fidelity_of([launched("late-broken+caches")], [launched("sound")], baseline_id="A", is_baseline=False)
    assert found is not None
    bands = {band.name: band for band in found.bands}
    assert bands["early"].nll_delta == 0.0
    assert bands["late"].nll_delta_low is not None and bands["late"].nll_delta_low > 1.0
    assert found.cache_hits_verified
    assert found.identical_outputs == 1.0  # the greedy answers of this server depend on their last tokens alone


def test_a_server_that_answers_otherwise_diverges_at_once(launched: Launched) -> None:
    found = fidelity_of([launched("broken")], [launched("sound")], baseline_id="A", is_baseline=False)
    assert found is not None
    assert (found.greedy_prompts, found.identical_outputs, found.divergence_tokens_median) == (2, 0.0, 0.0)


@pytest.mark.parametrize(
    ("faults", "alone", "under_load"), [("sound", 1.0, 1.0), ("unsteady", 0.0, 0.0), ("unsteady-beside", 1.0, 0.0)]
)
def test_unsteady_servers_are_told_apart(launched: Launched, faults: str, alone: float, under_load: float) -> None:
    found = determinism_of([launched(faults)])
    assert found is not None
    assert (found.identical_alone, found.identical_under_load) == (alone, under_load)
