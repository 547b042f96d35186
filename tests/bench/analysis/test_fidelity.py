"""Fidelity: hand-made records whose numbers are known, and what can't be compared."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from bench.analysis import analyse
from bench.analysis.fidelity import fidelity
from bench.analysis.load import LaunchRecord
from bench.analysis.result import FidelityResult
from tests.bench.run_folder import build
from tests.bench.runs import BASE, FP8, LLAMA, five

HALF, QUARTER = math.log(0.5), math.log(0.25)
SAME, SWAPPED = ([1, 2], [HALF, QUARTER]), ([2, 1], [HALF, QUARTER])
SWAPPED_KL = 0.25 * math.log(2)
"""0.5 log(0.5/0.25) + 0.25 log(0.25/0.5), the rest being equal."""
POSITIONS = [100, 101, 200, 201, 300, 301]


def check_record(rows: list[Any], *, sha: str = "t", cached: list[Any] | None = None) -> dict[str, Any]:
    """Schema version 2, one text; the text's own token is always 1."""
    text = {
        "text_sha256": sha,
        "top_k": 2,
        "vocab": 100,
        "positions": POSITIONS,
        "next_token_ids": [1] * len(rows),
        "top_token_ids": [ids for ids, _ in rows],
        "top_logprobs": [values for _, values in rows],
        "cached_tokens": cached if cached is not None else [0, *POSITIONS[:-1]],
    }
    return {"schema_version": 2, "texts": [text], "echo": None, "prefix_hits": None, "error": None}


def greedy(*answers: Any, tokens: int = 4) -> dict[str, Any]:
    key = "text" if isinstance(answers[0], str) else "token_ids"
    empty = {"token_ids": None, "text": None, "error": None, "text_index": 0, "position": 100}
    prompts = [{**empty, "prompt_sha256": f"p{i}", key: answer} for i, answer in enumerate(answers)]
    return {"schema_version": 1, "greedy": {"tokens": tokens, "prompts": prompts}, "determinism": None}


def launch(
    name: str, record: dict[str, Any] | None, *, block: int = 0, replica: int = 1, said: dict[str, Any] | None = None
) -> LaunchRecord:
    facts = {"deployment": name, "replica": replica, "state": "measured", "block": block}
    return LaunchRecord(name, block, facts, {}, {}, record, None, said)


def found(launches: list[LaunchRecord], baseline: list[LaunchRecord], *, is_baseline: bool = False) -> Any:
    return fidelity(launches, baseline, baseline_id="base", is_baseline=is_baseline)


A = launch("base", check_record([SAME] * 6))


def test_bands_by_hand() -> None:
    candidate = launch("x", check_record([SAME] * 4 + [SWAPPED] * 2))
    result = found([candidate], [A])
    assert isinstance(result, FidelityResult)
    assert (result.is_floor, result.blocks, result.texts, result.baseline) == (False, 1, 1, "base")
    whole, *stretches = result.bands
    assert (whole.name, whole.positions, whole.first_position, whole.last_position) == ("all", 6, 100, 301)
    assert whole.nll == pytest.approx((4 * math.log(2) + 2 * math.log(4)) / 6)
    assert whole.nll_delta == pytest.approx(math.log(2) / 3)
    assert whole.top1_agreement == pytest.approx(4 / 6)
    assert whole.kl == pytest.approx(SWAPPED_KL / 3)
    assert [band.name for band in stretches] == ["early", "middle", "late"]
    assert [(band.first_position, band.last_position) for band in stretches] == [(100, 100), (101, 200), (201, 301)]
    late = stretches[-1]
    assert late.positions == 3
    assert late.nll_delta == pytest.approx(math.log(2) * 2 / 3)
    assert late.kl == pytest.approx(SWAPPED_KL * 2 / 3)


def test_the_same_text_in_several_blocks_does_not_narrow_the_interval() -> None:
    rows = [SAME] * 4 + [SWAPPED] * 2
    once = found([launch("x", check_record(rows))], [A])
    baseline = [launch("base", check_record([SAME] * 6), block=block) for block in range(3)]
    thrice = found([launch("x", check_record(rows), block=block) for block in range(3)], baseline)
    assert thrice.blocks == 3
    assert thrice.bands == once.bands


def test_blocks_are_averaged() -> None:
    baseline = [launch("base", check_record([SAME] * 6), block=block) for block in range(2)]
    one, other = check_record([SWAPPED] * 6), check_record([SAME] * 6)
    result = found([launch("x", one), launch("x", other, block=1)], baseline)
    assert result.bands[0].top1_agreement == 0.5
    assert result.bands[0].nll_delta == pytest.approx(math.log(2) / 2)


def test_of_the_baseline_it_is_the_floor() -> None:
    second = launch("base", check_record([SAME] * 5 + [SWAPPED]), replica=2)
    result = found([A, second], [A, second], is_baseline=True)
    assert result.is_floor
    assert result.bands[0].top1_agreement == pytest.approx(5 / 6)


def test_a_baseline_that_is_launched_once_a_block_has_no_floor() -> None:
    assert found([A], [A], is_baseline=True) is None


def test_only_the_baseline_of_the_same_block_is_a_reference() -> None:
    assert found([launch("x", check_record([SAME] * 6), block=1)], [A]) is None


def test_other_texts_are_not_compared() -> None:
    assert found([launch("x", check_record([SAME] * 6, sha="other"))], [A]) is None
    assert found([launch("x", None)], [A]) is None


def test_positions_without_numbers_are_left_out() -> None:
    holes: list[Any] = [SAME, ([], []), ([1, 2], [None, HALF]), ([1, 2], [float("nan"), HALF]), SAME, SAME]
    assert found([launch("x", check_record(holes))], [A]).bands[0].positions == 3
    nothing: list[Any] = [([], [])] * 6
    assert found([launch("x", check_record(nothing))], [A]) is None


@pytest.mark.parametrize(
    ("cached", "verified", "says"),
    [
        ([0, *POSITIONS[:-1]], True, "100%"),
        ([0] * 6, False, "0%"),
        ([0, 100, 96, 192, 192, 288], True, "96%"),
        ([None] * 6, None, "no cache hits"),
    ],
)
def test_cache_hits(cached: list[Any], verified: bool | None, says: str) -> None:
    result = found([launch("x", check_record([SAME] * 6, cached=cached))], [A])
    assert result.cache_hits_verified is verified
    assert says in result.cache_hits


def test_the_least_of_the_launches_counts_for_cache_hits() -> None:
    baseline = [launch("base", check_record([SAME] * 6), block=block) for block in range(2)]
    missed = launch("x", check_record([SAME] * 6, cached=[0] * 6), block=1)
    assert found([launch("x", check_record([SAME] * 6)), missed], baseline).cache_hits_verified is False


def test_greedy_answers_by_token() -> None:
    base = launch("base", check_record([SAME] * 6), said=greedy([1, 2, 3, 4], [5, 6, 7, 8], [9, 9, 9, 9]))
    mine = launch("x", check_record([SAME] * 6), said=greedy([1, 2, 3, 4], [5, 6, 0, 0], [0, 9, 9, 9]))
    result = found([mine], [base])
    assert (result.greedy_prompts, result.greedy_tokens) == (3, 4)
    assert result.identical_outputs == pytest.approx(1 / 3)
    assert result.divergence_tokens_median == 2  # of 4 (identical), 2 and 0


def test_greedy_answers_by_text_have_no_point_of_divergence() -> None:
    base = launch("base", check_record([SAME] * 6), said=greedy("a b", "c d"))
    mine = launch("x", check_record([SAME] * 6), said=greedy("a b", "c e"))
    result = found([mine], [base])
    assert result.identical_outputs == 0.5
    assert result.divergence_tokens_median is None


def test_greedy_prompts_that_failed_or_are_others_are_left_out() -> None:
    base = launch("base", check_record([SAME] * 6), said=greedy([1], [2], [3]))
    said = greedy([1], [2], [4])
    said["greedy"]["prompts"][1] |= {"token_ids": None, "error": "HTTP 500"}
    said["greedy"]["prompts"][2]["prompt_sha256"] = "another"
    result = found([launch("x", check_record([SAME] * 6), said=said)], [base])
    assert (result.greedy_prompts, result.identical_outputs) == (1, 1.0)


def test_no_greedy_record_no_numbers() -> None:
    result = found([launch("x", check_record([SAME] * 6))], [A])
    assert (result.greedy_prompts, result.identical_outputs, result.divergence_tokens_median) == (0, None, None)


def test_a_run_s_folder_is_read_in_both_versions(tmp_path: Path) -> None:
    the_plan, launches = five(blocks=2)
    second = check_record([SAME] * 6)
    launches[0, BASE, 1].output_check = launches[0, BASE, 2].output_check = second
    launches[0, FP8, 1].output_check = check_record([SAME] * 4 + [SWAPPED] * 2)
    run_dir = build(tmp_path, the_plan, launches)
    answers = [{"token_ids": [1, 2], "text": None, "error": None}] * 2
    prompts = [{"prompt_sha256": "p", "alone": answers, "beside_others": answers}]
    once = {"tokens": 2, "repeats": 2, "beside": 3, "prompts": prompts}
    for name, said in ((BASE, [1, 2]), (BASE + "+A2", [1, 2]), (FP8, [1, 3])):
        path = run_dir / "blocks" / "0" / name / "fidelity.json"
        path.write_text(json.dumps({**greedy(said, tokens=2), "determinism": once}))
    results = {one.id: one for one in analyse(run_dir).deployments}
    base, fp8 = results[BASE].fidelity, results[FP8].fidelity
    assert base is not None and fp8 is not None
    assert (base.is_floor, base.identical_outputs, base.blocks) == (True, 1.0, 2)
    assert (fp8.is_floor, fp8.identical_outputs, fp8.baseline) == (False, 0.0, BASE)
    assert fp8.bands[0].positions == 6 + 20  # block 1 holds another text, of version 1
    assert fp8.cache_hits_verified  # by block 0 alone: version 1 tells of no hits here
    determinism = results[FP8].determinism
    assert determinism is not None
    assert (determinism.identical_alone, determinism.identical_under_load, determinism.beside) == (1.0, 1.0, 3)
    assert results[LLAMA].fidelity is None  # launched once a block: no floor
    assert results[LLAMA].determinism is None
