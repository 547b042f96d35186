"""Two runs, or deployments: what is comparable is compared, by the rule that fits; a machine's shift is no finding."""

import json
import math
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench.analysis.result import CellResult, DeploymentResult, LaunchStatistics
from bench.comparability import Pair, differences
from bench.compare_runs import compare_runs
from bench.compare_speed import speed_verdicts
from bench.compare_view import write
from bench.run_comparison import PairComparison, RunComparison, SpeedVerdict
from bench.sides import Named, Side, named
from tests.bench.run_folder import steady
from tests.bench.runs import BASE, FP8, LLAMA, Q8, spec
from tests.bench.two_runs import Launches, alter, of, run

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "results" / "example"


def slower(factor: float) -> Callable[[Launches], None]:
    """Every launch of every deployment takes so much longer."""

    def change(launches: Launches) -> None:
        for (block, deployment, replica), one in launches.items():
            if one.rows is not None:
                ttft = {BASE: 400 + 4 * (replica - 1), FP8: 260 + block, LLAMA: 600 + 3 * block, Q8: 800 - 2 * block}
                ttft_ms = factor * ttft[deployment] * (1 + 0.01 * block)
                launches[block, deployment, replica] = replace(one, rows=steady(ttft_ms=ttft_ms, itl_ms=20 * factor))

    return change


def row(result: RunComparison, deployment: str, metric: str = "output_tokens_per_s") -> SpeedVerdict:
    (found,) = [r for p in result.pairs if p.b == deployment for r in p.speed if r.metric == metric]
    return found


def of_pair(result: RunComparison, deployment: str) -> PairComparison:
    return next(p for p in result.pairs if p.b == deployment)


def test_a_copy_of_a_run_is_equivalent_in_everything(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(EXAMPLE, copy)
    result = compare_runs(named(str(EXAMPLE), "a"), named(str(copy), "b"))
    verdicts = [(p.b, r.metric, r.verdict) for p in result.pairs for r in p.speed]
    assert verdicts
    assert {verdict for *_, verdict in verdicts} == {"equivalent"}
    scores = [a for p in result.pairs for a in p.accuracy]
    assert scores
    assert {a.verdict for a in scores} == {"equivalent"}
    assert all("no second measurement" in a.reason for a in scores)


@pytest.mark.parametrize(
    ("file", "path", "value", "words", "accuracy_too"),
    [
        ("manifest.json", ("models", "smollm2-135m", "content_sha256"), "0" * 64, "content_sha256", True),
        ("plan.json", ("settings", "smollm2-135m", "context_tokens"), 4096, "context length", True),
        ("plan.json", ("kv_budget_bytes", "smollm2-135m"), 1, "KV budget", False),
        ("manifest.json", ("hardware", "cpu"), "another CPU", "hardware: cpu: AMD EPYC against another CPU", False),
        ("manifest.json", ("data", "corpus of smollm2-135m"), "0" * 64, "data: corpus of smollm2-135m", False),
    ],
)
def test_an_altered_copy_is_refused_naming_why(
    file: str, path: tuple[str, ...], value: object, words: str, accuracy_too: bool, tmp_path: Path
) -> None:
    shutil.copytree(EXAMPLE, tmp_path / "copy")
    altered = alter(Named(tmp_path / "copy"), file, *path, value=value)
    result = compare_runs(named(str(EXAMPLE), "a"), altered)
    for pair in result.pairs:
        assert all(r.verdict == "not comparable" and words in r.reason for r in pair.speed)
        for a in pair.accuracy:
            assert (a.verdict == "not comparable") == accuracy_too
            assert not accuracy_too or words in a.reason
    assert result.compared != accuracy_too


def test_a_client_bound_cell_is_refused_and_the_others_compared(tmp_path: Path) -> None:
    def change(launches: Launches) -> None:
        launches[0, FP8, 1].client = {"cpu_share_max": 0.97}

    result = compare_runs(run(tmp_path / "a"), run(tmp_path / "b", launches=change))
    assert row(result, FP8).verdict == "not comparable"
    assert "client-bound" in row(result, FP8).reason
    assert row(result, Q8).verdict == "equivalent"


def test_a_shift_of_the_machine_is_told_and_cancels_out(tmp_path: Path) -> None:
    result = compare_runs(run(tmp_path / "a"), run(tmp_path / "b", launches=slower(1.3)))
    fp8, base = row(result, FP8), row(result, BASE)
    assert (fp8.verdict, fp8.rests_on, fp8.control) == ("equivalent", "ratio of ratios", BASE)
    assert fp8.ratio_of_ratios is not None and fp8.drift is not None and fp8.direct is not None
    assert fp8.ratio_of_ratios.effect_pct == pytest.approx(0, abs=0.01)
    assert fp8.drift.effect_pct == pytest.approx(100 * (1 / 1.3 - 1), abs=0.1)
    assert fp8.direct.effect_pct == pytest.approx(100 * (1 / 1.3 - 1), abs=0.1)
    assert fp8.direct_verdict == "not comparable"
    assert "the machine itself shifted by −23 %" in fp8.reason
    assert (base.verdict, base.direct_verdict) == ("not comparable", "not comparable")
    assert "the machine itself shifted by −23 %" in base.reason


def test_a_real_change_is_found_beside_a_shift_of_the_machine(tmp_path: Path) -> None:
    def change(launches: Launches) -> None:
        slower(1.3)(launches)
        for block in range(3):
            launches[block, FP8, 1] = replace(launches[block, FP8, 1], rows=steady(ttft_ms=170, itl_ms=13))

    fp8 = row(compare_runs(run(tmp_path / "a"), run(tmp_path / "b", launches=change)), FP8)
    assert (fp8.verdict, fp8.rests_on) == ("better", "ratio of ratios")


def test_another_engine_version_is_what_is_compared_and_no_control(tmp_path: Path) -> None:
    newer = alter(run(tmp_path / "b"), "manifest.json", "engines", "vllm", "version", value="0.33.0")
    result = compare_runs(run(tmp_path / "a"), newer)
    assert any(d.what == "engine: version" and not d.voids for d in of_pair(result, BASE).differences)
    assert row(result, FP8).control == LLAMA, "the baseline of the engine that stayed the same"
    assert row(result, FP8).verdict == "equivalent"


def test_without_an_unchanged_baseline_the_direct_ratio_stands_and_says_what_it_lacks(tmp_path: Path) -> None:
    newer = run(tmp_path / "b")
    for backend in ("vllm", "llama-cpp"):
        newer = alter(newer, "manifest.json", "engines", backend, "version", value="9")
    found = row(compare_runs(run(tmp_path / "a"), newer), FP8)
    assert found.rests_on == "direct"
    assert "no control of the machine" in found.reason
    assert "a shift of the machine between the two runs is not in the interval" in found.reason


def test_two_deployments_of_one_run_keep_its_own_comparison() -> None:
    one, other = (f"{EXAMPLE}:vllm+smollm2-135m+{strategy}" for strategy in ("baseline", "kv-fp8"))
    result = compare_runs(named(one, "a"), named(other, "b"))
    own = Side.of(named(str(EXAMPLE), "a")).analysis
    (pair,) = result.pairs
    assert result.same_run
    for r in pair.speed:
        (c,) = [
            c
            for c in own.comparisons
            if (c.deployment, c.metric, c.against) == (pair.b, r.metric, "engine") and c.baseline == pair.a
        ]
        assert r.direct is not None
        assert (r.verdict, r.direct.low_pct, r.direct.high_pct) == (c.verdict, c.low_pct, c.high_pct)
        assert r.rests_on == "own comparison"
    (score,) = [c for c in own.accuracy if (c.deployment, c.against) == (pair.b, "engine")]
    assert pair.accuracy == (score,)


def test_what_a_run_compares_with_no_baseline_is_made_by_the_same_rule(tmp_path: Path) -> None:
    one = run(tmp_path)
    back = compare_runs(Named(one.path, FP8), Named(one.path, BASE))
    own = next(c for c in Side.of(one).analysis.comparisons if c.deployment == FP8 and c.role == "primary")
    found = row(back, BASE, own.metric)
    assert found.direct is not None and own.effect_pct is not None
    assert math.log1p(found.direct.effect_pct / 100) == pytest.approx(-math.log1p(own.effect_pct / 100))
    assert "not adjusted" in found.reason


def test_a_run_that_waited_for_precision_is_compared_at_half_the_error_rate(tmp_path: Path) -> None:
    def uneven(launches: Launches) -> None:
        for block in range(3):
            rows = steady(ttft_ms=260, itl_ms=(19, 21, 20)[block])
            launches[block, FP8, 1] = replace(launches[block, FP8, 1], rows=rows)

    a, fixed = run(tmp_path / "a"), run(tmp_path / "b", launches=uneven)
    waited = run(tmp_path / "c", launches=uneven, until={"throughput_pct": 5.0})
    usual, wide = (row(compare_runs(a, b), FP8) for b in (fixed, waited))
    for name in ("direct", "ratio_of_ratios"):
        narrow, wider = getattr(usual, name), getattr(wide, name)
        assert wider.low_pct < narrow.low_pct and wider.high_pct > narrow.high_pct
    assert "97.5 %" in wide.reason and wide.direct is not None and "97.5 % t interval" in wide.direct.method
    own = compare_runs(Named(waited.path, FP8), Named(waited.path, BASE)).pairs[0].speed[0]
    assert own.direct is not None and "97.5 % t interval, not adjusted" in own.direct.method


def test_one_block_in_common_gives_no_verdict(tmp_path: Path) -> None:
    result = compare_runs(run(tmp_path / "a"), run(tmp_path / "b", blocks=1))
    assert row(result, FP8).verdict == "inconclusive"
    assert "one block" in row(result, FP8).reason


def test_a_loss_of_answers_is_found_between_runs(tmp_path: Path) -> None:
    def change(launches: Launches) -> None:
        for block in range(5):
            launches[block, FP8, 1].items = spec(block, right=2).items

    a = run(tmp_path / "a", blocks=5)
    (score,) = of_pair(compare_runs(a, run(tmp_path / "b", blocks=5, launches=change)), FP8).accuracy
    assert score.verdict == "worse"
    assert (score.lost, score.gained, score.n) == (14 * 5, 0, 16 * 5)


def test_runs_without_a_common_deployment_and_of_a_later_schema_are_refused(tmp_path: Path) -> None:
    a = run(tmp_path / "a")
    later = alter(run(tmp_path / "b"), "manifest.json", "schema_version", value=99)
    result = compare_runs(a, later)
    assert not result.compared
    assert [(d.what, d.a, d.b) for d in result.refused] == [("schema_version", 1, 99)]
    assert not compare_runs(named(str(EXAMPLE), "a"), a).compared


def test_the_ratio_of_ratios_holds_the_truth_as_often_as_it_says_and_the_direct_one_does_not(tmp_path: Path) -> None:
    """1,000 pairs of runs; the machine shifts by 20 % (SD) between them, blocks and launches vary."""
    a, b = Side.of(run(tmp_path / "a")), Side.of(run(tmp_path / "b"))
    rng, draws, truth = np.random.default_rng(4), 1000, math.log(1.1)
    held = direct = 0
    for _ in range(draws):
        before, after = drawn_side(rng, a, {}, 0.0), drawn_side(rng, b, {FP8: truth}, rng.normal(0, 0.2))
        pair = Pair(before, of(before, FP8), after, of(after, FP8))
        found = next(speed_verdicts(pair, (), 1))
        assert found.ratio_of_ratios is not None and found.direct is not None
        held += found.ratio_of_ratios.low_pct <= 10 <= found.ratio_of_ratios.high_pct
        direct += found.direct.low_pct <= 10 <= found.direct.high_pct
    assert 0.93 <= held / draws <= 0.97
    assert direct / draws < 0.9


def drawn_side(rng: np.random.Generator, side: Side, effects: dict[str, float], day: float) -> Side:
    """The same run with other numbers: a shift of the day, of each block, effects, and noise of each launch."""
    shifts = [rng.normal(day, 0.1) for _ in range(3)]

    def numbers(one: DeploymentResult) -> Iterator[LaunchStatistics]:
        for launch in one.cells["chat"].launches:
            log = 4 + shifts[launch.block] + effects.get(one.id, 0.0) + rng.normal(0, 0.03)
            yield replace(launch, values={**launch.values, "output_tokens_per_s": math.exp(log)})

    def cell(one: DeploymentResult) -> CellResult:
        return replace(one.cells["chat"], launches=tuple(numbers(one)))

    deployments = [
        replace(one, cells={"chat": cell(one)}) if one.id in (BASE, FP8) else one for one in side.analysis.deployments
    ]
    return Side(side.named, side.record, replace(side.analysis, deployments=tuple(deployments)))


def test_the_files_hold_every_verdict_with_its_numbers(tmp_path: Path) -> None:
    result = compare_runs(run(tmp_path / "a"), run(tmp_path / "b", launches=slower(1.3)))
    data, text = write(result, tmp_path / "reports")
    stored = json.loads(data.read_text())
    assert stored["schema_version"] == 1
    assert stored["compared"] is True
    for pair in stored["pairs"]:
        for r in pair["speed"]:
            assert r["verdict"] and r["reason"]
            assert r["direct"] is None or r["direct"]["method"]
    page = text.read_text()
    headings = ("| verdict", "| blocks", "| launches A, B", "| McNemar p", "| method")
    for words in (
        FP8,
        "ratio of ratios",
        "the machine itself shifted",
        "log(B over A) ~ deployment + block",
        *headings,
    ):
        assert words in page


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "bench", *arguments]
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=120)


def test_the_command_says_by_its_exit_code_whether_anything_was_compared(tmp_path: Path) -> None:
    reports = f"reports_dir={tmp_path / 'reports'}"
    done = bench("compare", str(EXAMPLE), str(EXAMPLE), reports)
    assert done.returncode == 0, done.stderr
    assert "equivalent" in done.stdout
    assert "\x1b" not in done.stdout
    assert len(list((tmp_path / "reports").iterdir())) == 2
    later = alter(run(tmp_path), "manifest.json", "schema_version", value=99)
    done = bench("compare", f"a={EXAMPLE}", f"b={later.path}", reports)
    assert done.returncode == 1
    assert "schema_version" in done.stdout
    assert "Nothing is comparable." in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "a and b missing"),
        ((str(EXAMPLE),), "b missing"),
        ((str(EXAMPLE), str(EXAMPLE), str(EXAMPLE)), "one argument too many"),
        ((str(EXAMPLE), f"{EXAMPLE}:nothing"), "no deployment 'nothing'; allowed: vllm+"),
        ((str(EXAMPLE), "nowhere"), "b=nowhere is no run"),
        ((str(EXAMPLE), str(EXAMPLE), "report_dir=x"), "unknown key report_dir; allowed: a, b, reports_dir"),
    ],
)
def test_bad_arguments_are_named(arguments: tuple[str, ...], words: str) -> None:
    done = bench("compare", *arguments)
    assert done.returncode == 2
    assert words in done.stderr


def test_differences_of_a_pair_stand_with_the_obstacles_first(tmp_path: Path) -> None:
    b = alter(run(tmp_path / "b"), "manifest.json", "hardware", "cpu", value="another CPU")
    b = alter(b, "manifest.json", "seed", value=5)
    sides = Side.of(run(tmp_path / "a")), Side.of(b)
    found = differences(Pair(sides[0], of(sides[0], FP8), sides[1], of(sides[1], FP8)))
    assert [bool(d.voids) for d in found] == [True, False]
