"""The page and the tables: nothing runs, nothing is lost, and what is missing says so."""

import html
import re
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest

from bench.analysis import analyse
from bench.report import quality, write
from bench.report.charts import Axis, Point, scatter
from bench.report.html import page
from bench.report.tables import tables
from tests.bench.run_folder import LaunchSpec, build, deployment, effect, plan, samples
from tests.bench.runs import BASE, FP8, Q8, five, spec

SCRIPT = "<script>alert('x')</script>"


class Tags(HTMLParser):
    """Collects tag names and attributes; fails on an attribute that could run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        for name, value in attrs:
            assert not name.startswith("on"), f"<{tag} {name}>"
            if name in ("src", "href"):
                self.links.append(str(value))


def tags_of(text: str) -> Tags:
    tags = Tags()
    tags.feed(text)
    return tags


def test_the_page_is_self_contained(tmp_path: Path) -> None:
    text = page(analyse(build(tmp_path, *five())))
    tags = tags_of(text)
    assert "script" not in tags.names and "link" not in tags.names and tags.links == []
    assert "url(" not in text and "@import" not in text
    assert tags.names.count("svg") >= 2, "throughput against latency, memory against accuracy"


def test_the_conclusion_comes_first(tmp_path: Path) -> None:
    text = page(analyse(build(tmp_path, *five())))
    assert text.index("run vLLM + fp8 (e4m3)") < text.index("<table")


def test_names_and_reasons_from_elsewhere_can_not_run(tmp_path: Path) -> None:
    the_plan, launches = five()
    for one in the_plan["deployments"]:
        one["strategy_title"] += SCRIPT
        one["backend_title"] = f"<img src=x onerror=alert(1)>{one['backend']}"
    the_plan["title"] = the_plan["question"] = SCRIPT
    the_plan["dropped"], the_plan["support"][0]["reason"] = [SCRIPT], SCRIPT
    launches[0, FP8, 1] = LaunchSpec(rows=None, state="failed", reason=f"{SCRIPT}\n</pre></svg>")
    launches[0, BASE, 1].effect = {**effect(), "evidence": [SCRIPT], "kv_dtype": SCRIPT}
    tags = tags_of(page(analyse(build(tmp_path, the_plan, launches))))
    assert "script" not in tags.names and "img" not in tags.names


def test_a_name_without_end_does_not_drown_the_page(tmp_path: Path) -> None:
    the_plan, launches = five()
    the_plan["deployments"][1]["strategy_title"] = "fp8 压缩 " * 2000
    text = page(analyse(build(tmp_path, the_plan, launches)))
    assert "fp8 压缩" in text and len(text) < 300_000


def test_what_a_run_lacks_is_left_out(tmp_path: Path) -> None:
    the_plan = plan([deployment("vllm", "baseline")], blocks=1, accuracy={}, sla={}, support=[])
    text = page(analyse(build(tmp_path, the_plan, {(0, BASE, 1): spec(0)})))
    assert "No verdict: one block." in text
    for heading in ("Accuracy</h2>", "Support</h2>", "What is not ranked", "<svg"):
        assert heading not in text


def test_a_run_in_which_all_failed_still_has_a_page(tmp_path: Path) -> None:
    the_plan, launches = five()
    failed = {key: LaunchSpec(rows=None, state="failed", reason="no memory left") for key in launches}
    text = page(analyse(build(tmp_path, the_plan, failed)))
    assert "No deployment could be ranked." in text
    assert text.count("no memory left") >= 5
    assert "<svg" not in text


def test_a_run_without_a_complete_block_still_has_a_page(tmp_path: Path) -> None:
    the_plan, launches = five()
    text = page(analyse(build(tmp_path, the_plan, launches, interrupted=[0, 1, 2])))
    assert "No block was completed" in text and "cut short" in text


def test_every_state_and_reason_is_on_the_page(tmp_path: Path) -> None:
    text = page(analyse(build(tmp_path, *five(), interrupted=[2])))
    for expected in ("output broken", "9.4 against 2.8", "no fp8 type", "interrupted", "2 of 3 blocks are measured"):
        assert expected in text


def test_files_of_a_report(tmp_path: Path) -> None:
    run_dir = build(tmp_path, *five())
    paths = write(analyse(run_dir), run_dir, tmp_path / "reports")
    assert paths == [tmp_path / "reports" / "long-context" / "2026-11-29T1341.html"]
    assert paths[0].read_text().startswith("<!doctype html>")
    names = {p.name for p in (run_dir / "tables").iterdir()}
    assert {"memory.csv", "memory.md", "throughput.csv", "latency.md", "accuracy.csv", "comparisons.csv"} <= names
    assert (run_dir / "analysis.json").is_file()


def test_a_report_rebuilt_is_the_same(tmp_path: Path) -> None:
    run_dir = build(tmp_path, *five())
    first = write(analyse(run_dir), run_dir, tmp_path / "reports")[0].read_bytes()
    assert write(analyse(run_dir), run_dir, tmp_path / "reports")[0].read_bytes() == first


def test_tables_say_what_is_not_measured(tmp_path: Path) -> None:
    the_plan, launches = five()
    launches[1, FP8, 1] = LaunchSpec(rows=None, state="failed", reason="died")
    found = tables(analyse(build(tmp_path, the_plan, launches)))
    memory = found["memory"].set_index("deployment")
    assert memory.loc["llama-cpp+tiny+kv-fp8", "kv_bytes_per_token"] == "not measured: unsupported: no fp8 type"
    assert memory.loc[BASE, "peak_gpu_memory_bytes"] == "not measured: no GPU reading"
    latency = found["latency"].set_index(["deployment", "metric"])
    assert latency.loc[(BASE, "ttft_ms"), "p99"] == "not measured: n = 72 < 368"
    assert not any(frame.isna().any().any() for frame in found.values())


def test_tables_hold_both_baselines(tmp_path: Path) -> None:
    found = tables(analyse(build(tmp_path, *five())))
    q8 = found["throughput"].set_index("deployment").loc["llama-cpp+tiny+kv-q8"]
    assert q8["vs_engine_16bit"] != q8["vs_common"] and q8["vs_engine_16bit_verdict"].startswith("worse")
    assert found["memory"].set_index("deployment").loc[FP8, "kv_bytes_per_token_over_engine_16bit"] == 0.5


def test_verdicts_on_accuracy_against_both_baselines_have_their_numbers(tmp_path: Path) -> None:
    the_plan, launches = five()
    for block in range(3):
        launches[block, Q8, 1].items = samples(2, block=block)
    analysis = analyse(build(tmp_path, the_plan, launches))
    rows = {row["against"]: row for row in quality.accuracy(analysis) if "q8_0" in row["deployment"]}
    assert rows.keys() == {"own 16-bit", "common"}
    how = {row["against"]: row for row in quality.accuracy_methods(analysis) if "q8_0" in row["deployment"]}
    text = html.unescape(page(analysis))
    for against, row in rows.items():
        assert (row["verdict"], row["n"], row["lost / gained"].split(",")[0]) == ("worse", "48", "42 / 0")
        assert "Tango's score interval, 48 pairs" in how[against]["interval"]
        assert row["why"] in text and how[against]["interval"] in text
    assert [row["against"] for row in quality.accuracy(analysis) if "fp8" in row["deployment"]] == ["own 16-bit"]
    frame = tables(analysis)["accuracy"].set_index("deployment")
    for label in ("vs_engine_16bit", "vs_common"):
        assert (frame.loc[Q8, f"{label}_n"], frame.loc[Q8, f"{label}_documents"]) == (48, 6)
        assert frame.loc[Q8, f"{label}_verdict"].startswith("worse") and "Tango" in frame.loc[Q8, f"{label}_method"]


def test_numbers_in_the_csv_are_the_analysis(tmp_path: Path) -> None:
    run_dir = build(tmp_path, *five())
    analysis = analyse(run_dir)
    write(analysis, run_dir, tmp_path / "reports")
    frame = pd.read_csv(run_dir / "tables" / "throughput.csv").set_index("deployment")
    expected = analysis.deployment(FP8).cells["chat"].means["output_tokens_per_s"]
    assert float(frame.loc[FP8, "output_tokens_per_s"]) == pytest.approx(expected)


def test_a_pipe_in_a_reason_does_not_break_markdown(tmp_path: Path) -> None:
    the_plan, launches = five()
    the_plan["support"][0]["reason"] = "a | b\nc"
    run_dir = build(tmp_path, the_plan, launches)
    write(analyse(run_dir), run_dir, tmp_path / "reports")
    lines = (run_dir / "tables" / "deployments.md").read_text().splitlines()
    bars = {len(re.findall(r"(?<!\\)\|", line)) for line in lines}
    assert len(bars) == 1


def test_labels_of_equal_points_do_not_cover_each_other() -> None:
    axis = Axis("x", more_is_better=True)
    svg = scatter([Point(1, 1, "a", "g", ""), Point(1, 1, "b", "h", ""), Point(2, 2, "c", "g", "")], axis, axis, "n")
    heights = re.findall(r'class="label[^>]* y="([\d.]+)"', str(svg))
    assert len(set(heights)) == 3


def test_a_chart_needs_something_to_compare() -> None:
    axis = Axis("x", more_is_better=True)
    assert scatter([Point(1, 1, "a", "g", "")], axis, axis, "n") is None
    assert scatter([Point(1, 1, "a", "g", ""), Point(float("inf"), 1, "b", "g", "")], axis, axis, "n") is None
