"""Accuracy of whole runs: what may be paired, flips against the floor, texts, and servers with a known loss."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.analysis.assemble import analyse
from bench.analysis.result import AccuracyComparison, Analysis, TextAgreement
from harness.accuracy.kinds import kinds
from tests.bench.run_folder import LaunchSpec, build, plan, samples
from tests.bench.runs import BASE, FP8, five, spec

Items = list[dict[str, Any]]


def without_load() -> tuple[dict[str, Any], dict[tuple[int, str, int], LaunchSpec]]:
    """The run of `five` that asked questions only."""
    the_plan, launches = five()
    return {**the_plan, "loads": {}}, launches


def run(tmp_path: Path, items: Callable[[str, int, int], Items | None], **task: Any) -> Analysis:
    """Three blocks whose launches answered what `items` says of (deployment, block, replica)."""
    the_plan, launches = without_load()
    the_plan["accuracy"] = {"retrieval": {"kind": "own", "margin_pp": 10.0, **task}}
    for (block, deployment, replica), launch in launches.items():
        launch.items = items(deployment, block, replica) if launch.items is not None else None
    return analyse(build(tmp_path, the_plan, launches))


def fp8(analysis: Analysis) -> AccuracyComparison:
    return next(one for one in analysis.accuracy if (one.deployment, one.against) == (FP8, "engine"))


def asked(block: int, scores: list[float], **more: Any) -> Items:
    """Questions of a block, each on its own document."""
    items = samples(0, n=len(scores), documents=len(scores), block=block)
    return [{**item, "score": score, **more} for item, score in zip(items, scores, strict=True)]


def right(block: int, count: int = 200) -> list[float]:
    """A model that knows 80 %."""
    draw = random.Random(block)
    return [float(draw.random() < 0.8) for _ in range(count)]


@pytest.mark.parametrize("share", [0.1, 0.3])
def test_a_server_that_flips_a_known_share_is_worse_and_the_interval_covers_it(tmp_path: Path, share: float) -> None:
    def items(deployment: str, block: int, replica: int) -> Items:
        scores = right(block)
        flipped = [int(i * share) != int((i + 1) * share) for i in range(len(scores))]
        return asked(
            block, [0.0 if deployment == FP8 and f else score for f, score in zip(flipped, scores, strict=True)]
        )

    found = fp8(run(tmp_path, items))
    assert found.verdict == "worse" and found.gained == 0
    assert found.low_pp < -100 * share * 0.8 < found.high_pp  # type: ignore[operator]
    assert (found.n, found.documents) == (600, 600)


def test_an_equal_server_is_equivalent(tmp_path: Path) -> None:
    found = run(tmp_path, lambda deployment, block, replica: asked(block, right(block)))
    assert [(one.verdict, one.non_inferior) for one in found.accuracy] == [("equivalent", True)] * len(found.accuracy)
    assert fp8(found).smallest_loss_pp == pytest.approx(1.3, abs=0.2), "six hundred questions, none changed"


def test_a_guessing_baseline_says_nothing(tmp_path: Path) -> None:
    found = run(tmp_path, lambda deployment, block, replica: asked(block, [float(i % 20 == 0) for i in range(100)]))
    assert {one.verdict for one in found.accuracy} == {"not informative"}


def test_margins_of_both_kinds_come_from_the_plan(tmp_path: Path) -> None:
    def half(deployment: str, block: int, replica: int) -> Items:
        lost = 3 if deployment == FP8 else 0
        return asked(block, [0.0] * lost + [1.0] * (40 - lost) + [0.0] * 160)

    assert fp8(run(tmp_path / "absolute", half)).non_inferior
    relative = fp8(run(tmp_path / "relative", half, margin_pp=None, margin_relative_pct=10.0))
    assert not relative.non_inferior and relative.margin_pp == pytest.approx(2.0)
    assert relative.margin_relative_pct == 10.0


def test_the_floor_of_flips_is_a_against_a_prime(tmp_path: Path) -> None:
    def items(deployment: str, block: int, replica: int) -> Items:
        scores = right(block)
        turned = range(0, 200, 10) if replica == 2 else range(5, 200, 10) if deployment == FP8 else ()
        return asked(block, [1 - score if i in turned else score for i, score in enumerate(scores)], answer="same")

    found = run(tmp_path, items)
    floor = next(one for one in found.flip_floors if one.deployment == BASE)
    assert (floor.n, floor.flips_pct, floor.identical) == (600, 10.0, 1.0)
    assert floor.blocks == {"0": 10.0, "1": 10.0, "2": 10.0}
    assert floor.lost + floor.gained == 60
    one = fp8(found)
    assert one.flip_floor_pct == 10.0 and one.lost + one.gained == 60
    assert one.reason.endswith("its flips (10.0 %) don't exceed those of A against A′ (10.0 %) beyond chance")


def test_flips_beyond_the_floor_need_no_remark(tmp_path: Path) -> None:
    def items(deployment: str, block: int, replica: int) -> Items:
        turned = range(2) if replica == 2 else range(40) if deployment == FP8 else ()
        return asked(block, [1 - score if i in turned else score for i, score in enumerate(right(block))])

    found = fp8(run(tmp_path, items))
    assert found.flip_floor_pct == 1.0 and "flips" not in found.reason


def test_a_missing_item_is_left_out_and_said(tmp_path: Path) -> None:
    def items(deployment: str, block: int, replica: int) -> Items:
        found = asked(block, right(block))
        return found[:-3] if deployment == FP8 and block == 1 else found

    found = fp8(run(tmp_path, items))
    assert found.n == 597 and found.reason.endswith("3 questions that only one side answered are left out")


def test_the_second_launch_stands_in_only_where_the_first_has_no_scores(tmp_path: Path) -> None:
    def items(deployment: str, block: int, replica: int) -> Items | None:
        if deployment == BASE and replica == 1 and block == 1:
            return None
        return asked(block, [float(replica == 1)] * 100)

    found = run(tmp_path, items)
    assert found.deployment(BASE).accuracy["retrieval"].score == pytest.approx(2 / 3)
    assert next(one for one in found.flip_floors if one.deployment == BASE).blocks.keys() == {"0", "2"}


def test_item_ids_that_appear_twice_can_t_be_paired(tmp_path: Path) -> None:
    def items(deployment: str, block: int, replica: int) -> Items:
        found = asked(block, right(block))
        return [*found, found[7]] if deployment == FP8 and block == 2 else found

    found = fp8(run(tmp_path, items))
    assert (found.verdict, found.reason) == ("not comparable", "item ids are not unique in block 2 (b2-7)")


def fp8_against_its_baseline(tmp_path: Path, mine: LaunchSpec, theirs: LaunchSpec | None = None) -> AccuracyComparison:
    """A run whose fp8 launch in block 1 is `mine`, and the baseline's `theirs`."""
    the_plan, launches = without_load()
    launches[1, FP8, 1] = mine
    if theirs is not None:
        launches[1, BASE, 1] = theirs
    return fp8(analyse(build(tmp_path, the_plan, launches)))


def test_other_questions_under_the_same_names_are_never_paired(tmp_path: Path) -> None:
    sound = fp8_against_its_baseline(tmp_path / "same", spec(1))
    assert sound.n == 48 and sound.verdict != "not comparable"
    spoiled = fp8_against_its_baseline(tmp_path / "other", spec(1, items_sha256="e" * 64))
    assert (spoiled.verdict, spoiled.n, spoiled.difference_pp) == ("not comparable", 0, None)
    assert spoiled.reason == "the questions differ from the baseline's in block 1 (items_sha256)"


def test_questions_asked_in_another_way_say_so(tmp_path: Path) -> None:
    other = fp8_against_its_baseline(tmp_path, spec(1, items_sha256="e" * 64, mode="loglikelihood"))
    assert other.verdict == "not comparable"
    assert other.reason.endswith("in block 1 (asked by loglikelihood, the baseline by generation)")


@pytest.mark.parametrize(
    ("key", "mine", "theirs", "said"),
    [
        ("stop", ["\n"], ["\n", "."], 'stop list ["\\n"], the baseline\'s ["\\n", "."]'),
        ("prompt", "chat", "completion", 'prompt form "chat", the baseline\'s "completion"'),
        ("chat_template_sha256", "a" * 64, "b" * 64, "chat template"),
        ("num_concurrent", 1, 8, "concurrency 1, the baseline's 8"),
        ("context_tokens", 6000, 900, "prompt length 6000, the baseline's 900"),
        ("under_load_sha256", "c" * 64, None, "load beside the questions"),
    ],
)
def test_a_question_asked_under_other_settings_is_another_question(
    tmp_path: Path, key: str, mine: Any, theirs: Any, said: str
) -> None:
    one = spec(1, task={key: mine, "asked_sha256": "a" * 64})
    other = spec(1, task={key: theirs, "asked_sha256": "b" * 64})
    found = fp8_against_its_baseline(tmp_path, one, other)
    assert (found.verdict, found.reason) == (
        "not comparable",
        f"the questions differ from the baseline's in block 1 ({said})",
    )


def test_what_came_of_the_load_beside_the_questions_doesn_t_part_them(tmp_path: Path) -> None:
    one = spec(1, task={"under_load": {"load": "chat", "rounds": 3}, "asked_sha256": "a" * 64})
    other = spec(1, task={"under_load": {"load": "chat", "rounds": 4}, "asked_sha256": "a" * 64})
    assert fp8_against_its_baseline(tmp_path, one, other).n == 48


def test_chance_is_that_of_all_blocks(tmp_path: Path) -> None:
    the_plan, launches = without_load()
    for block, chance in enumerate((0.25, 0.5, 0.75)):
        launches[block, BASE, 1] = spec(block, chance=chance)
    assert analyse(build(tmp_path, the_plan, launches)).deployment(BASE).accuracy["retrieval"].chance == 0.5


SENTENCE = "the quick brown fox jumps over the lazy dog number {}"


def texts(tmp_path: Path, kind: str, mode: str = "generation") -> dict[tuple[str, str], TextAgreement]:
    """Of a run in which fp8 answers half of the questions with another sentence."""
    the_plan, launches = without_load()
    for (block, deployment, _), launch in launches.items():
        if launch.items is None:
            continue
        said = [SENTENCE.format(i) for i in range(40)]
        mine = ["nothing of that" if deployment == FP8 and i % 2 else text for i, text in enumerate(said)]
        launch.items = [
            {**item, "answer": f" {answer}", "target": text}
            for item, answer, text in zip(asked(block, right(block, 40)), mine, said, strict=True)
        ]
        launch.task = {"kind": kind}
        launch.mode = mode
    return {(one.deployment, one.against): one for one in analyse(build(tmp_path, the_plan, launches)).texts}


def test_generated_texts_are_held_against_the_baselines(tmp_path: Path) -> None:
    found = texts(tmp_path, kind="retrieval")
    assert "references" not in {against for _, against in found}, "a number to find is no text"
    one = found[FP8, "engine"]
    assert (one.n, one.identical) == (120, 0.5)
    assert one.bleu4 is not None and one.bleu4_low is not None and one.bleu4_low < one.bleu4 < 60
    assert one.rouge_l == pytest.approx(50) and one.rouge_l_low is not None and 35 < one.rouge_l_low < 50
    assert found[FP8, "common"].bleu4 == one.bleu4
    assert (BASE, "engine") not in found


def test_generated_texts_are_held_against_the_tasks_own(tmp_path: Path) -> None:
    (kind, *_) = [name for name, one in kinds().items() if one.text_references]
    found = texts(tmp_path, kind=kind)
    sound, worse = found[BASE, "references"], found[FP8, "references"]
    assert (sound.bleu4, sound.identical) == (pytest.approx(100), 1.0)
    assert sound.bleu4_low is None and "no interval" in sound.method, "no spread between documents shows nothing"
    assert (worse.bleu4, worse.rouge_l) == (found[FP8, "engine"].bleu4, found[FP8, "engine"].rouge_l)


def test_what_is_not_generated_has_no_text(tmp_path: Path) -> None:
    assert texts(tmp_path, kind="retrieval", mode="loglikelihood") == {}


def test_one_deployment_alone_is_compared_with_nothing(tmp_path: Path) -> None:
    the_plan, launches = without_load()
    alone = plan([one for one in the_plan["deployments"] if one["id"] == BASE])
    found = analyse(build(tmp_path, alone, {key: value for key, value in launches.items() if key[1] == BASE}))
    assert found.accuracy == () and found.texts == ()
    assert [one.deployment for one in found.flip_floors] == [BASE]
