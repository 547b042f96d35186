"""What a person reads in the terminal."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from bench.analysis import analyse
from bench.analysis.result import Analysis
from bench.report import render_terminal
from tests.bench.run_folder import LaunchSpec, build, forced_decode, request, steady
from tests.bench.runs import BASE, FP8, five


def printed(analysis: Analysis, width: int) -> str:
    console = Console(file=io.StringIO(), width=width)
    render_terminal(analysis, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [100, 120, 160, 200])
def test_plain_text_without_a_terminal_and_within_the_width(tmp_path: Path, width: int) -> None:
    text = printed(analyse(build(tmp_path, *five())), width)
    assert "\x1b" not in text and "\r" not in text
    assert max(map(len, text.splitlines()[1:])) <= width
    for expected in ("fp8", "OUTPUT BROKEN", "UNSUPPORTED: no fp8 type", "better: throughput, TTFT P90"):
        assert expected in " ".join(text.split())


def test_the_table_shows_figures_of_the_baseline_and_effects_of_the_others(tmp_path: Path) -> None:
    lines = printed(analyse(build(tmp_path, *five())), 220).splitlines()
    base = next(line for line in lines if "16-bit (baseline)" in line)
    fp8 = next(line for line in lines if "fp8 (e4m3)" in line)
    assert "23,040" in base and "8.0K tok" in base and "100 %" in base
    assert "0.50×" in fp8 and "2.00×" in fp8 and "−35 %" in fp8
    int8 = next(line for line in lines if "int8" in line)
    assert int8.count("not ranked") == 2


def test_the_conclusion_recommends_the_better_one(tmp_path: Path) -> None:
    text = printed(analyse(build(tmp_path, *five())), 300)
    assert "For SLA `chat` at this KV budget run vLLM + fp8 (e4m3): " in text
    assert "One deployment is not ranked: vLLM + int8 (output broken)." in text
    assert "Not supported: llama.cpp + fp8 (e4m3)." in text


def test_a_broken_winner_is_not_recommended(tmp_path: Path) -> None:
    the_plan, launches = five()
    for block in range(3):
        launches[block, FP8, 1].output_check = forced_decode(nll=9.4, top1=[9] * 20)
    text = printed(analyse(build(tmp_path, the_plan, launches)), 300)
    assert "stay with vLLM + 16-bit (baseline)" in text
    assert "2 deployments are not ranked: vLLM + fp8 (e4m3) (output broken), vLLM + int8 (output broken)." in text


def test_a_faster_one_that_loses_accuracy_is_not_recommended(tmp_path: Path) -> None:
    the_plan, launches = five()
    for block in range(3):
        for item in launches[block, FP8, 1].items or ():
            item["score"] = 0.0
    text = printed(analyse(build(tmp_path, the_plan, launches)), 300)
    assert "stay with vLLM + 16-bit (baseline)" in text and "run vLLM + fp8" not in text
    assert "all others are less accurate: vLLM + fp8 (e4m3)." in text


def test_an_sla_that_only_a_less_accurate_one_keeps_is_no_choice(tmp_path: Path) -> None:
    the_plan, launches = five()
    the_plan["sla"]["chat"]["ttft_p90_ms"] = 300.0
    for block in range(3):
        for item in launches[block, FP8, 1].items or ():
            item["score"] = 0.0
    text = printed(analyse(build(tmp_path, the_plan, launches)), 300)
    assert "run vLLM" not in text
    assert "no choice can be defended: vLLM + 16-bit (baseline) does not keep the SLA in every launch" in text
    assert "what does is less accurate: vLLM + fp8 (e4m3)." in text


def test_one_that_alone_keeps_the_sla_is_recommended_with_what_is_known_of_its_accuracy(tmp_path: Path) -> None:
    the_plan, launches = five()
    the_plan["sla"]["chat"]["ttft_p90_ms"] = 300.0
    for (block, deployment, _), launch in launches.items():
        if deployment in (BASE, FP8):  # as fast as each other, but for the first request of one launch
            launch.rows = steady(ttft_ms=250 + block)
    launches[1, BASE, 1].rows = steady(ttft_ms=320)
    text = printed(analyse(build(tmp_path, the_plan, launches)), 300)
    assert "run vLLM + fp8 (e4m3): vLLM + 16-bit (baseline) does not keep the SLA" in text
    assert "and this does; retrieval is inconclusive: a loss of 10 pp is not excluded." in text


def test_an_sla_that_none_keeps_names_the_nearest(tmp_path: Path) -> None:
    the_plan, launches = five()
    the_plan["sla"]["chat"]["ttft_p90_ms"] = 100.0
    text = printed(analyse(build(tmp_path, the_plan, launches)), 300)
    assert "None of the 4 ranked deployments keeps SLA `chat` in every launch; nearest is vLLM + fp8" in text


def test_one_block_says_no_verdict(tmp_path: Path) -> None:
    text = printed(analyse(build(tmp_path, *five(blocks=1))), 200)
    assert "No verdict: one block." in text and "better" not in text


def test_all_failed(tmp_path: Path) -> None:
    the_plan, launches = five()
    failed = {key: LaunchSpec(rows=None, state="failed", reason="no memory left") for key in launches}
    text = printed(analyse(build(tmp_path, the_plan, failed)), 120)
    assert "No deployment could be ranked." in text and "FAILED: 6 of 6 launches failed: no memory left" in text


def test_markup_in_a_name_is_printed_as_it_is(tmp_path: Path) -> None:
    the_plan, launches = five()
    the_plan["deployments"][1]["strategy_title"] = "[red]fp8[/red]"
    assert "[red]fp8[/red]" in printed(analyse(build(tmp_path, the_plan, launches)), 220)


def test_each_model_has_its_own_conclusion(tmp_path: Path) -> None:
    the_plan, launches = five()
    for one in list(the_plan["deployments"]):
        if one["id"] in (BASE, FP8):
            big = {"model": "big", "id": one["id"].replace("tiny", "big"), "common_baseline": False}
            the_plan["deployments"].append({**one, **big})
            for block in range(3):
                launches[block, big["id"], 1] = launches[block, one["id"], 1]
    text = printed(analyse(build(tmp_path, the_plan, launches)), 300)
    assert "tiny: For SLA `chat` at this KV budget run vLLM + fp8 (e4m3)" in text
    assert "big: For SLA `chat` at this KV budget run vLLM + fp8 (e4m3)" in text


def test_without_an_sla_it_speaks_of_throughput(tmp_path: Path) -> None:
    the_plan, launches = five()
    the_plan["sla"] = {}
    text = printed(analyse(build(tmp_path, the_plan, launches)), 300)
    assert "For throughput at this KV budget run vLLM + fp8 (e4m3)" in text


def test_no_difference_stays_with_the_baseline(tmp_path: Path) -> None:
    the_plan, launches = five()
    for block in range(3):
        launches[block, FP8, 1].rows = launches[block, BASE, 1].rows
    text = printed(analyse(build(tmp_path, the_plan, launches)), 300)
    assert "stay with vLLM + 16-bit (baseline): the other one is not shown to be better" in text


def test_failed_requests_stand_beside_the_verdict(tmp_path: Path) -> None:
    the_plan, launches = five()
    for key in ((0, BASE, 1), (0, FP8, 1)):
        rows = launches[key].rows or []
        rows[1] = request(500, sent_ms=0, error="timeout", events_ms=[], ended_ms=100)
    text = printed(analyse(build(tmp_path, the_plan, launches)), 120)
    assert "vLLM + 16-bit (baseline): 1 of 72 requests failed" in text
    assert "1 of 36 requests failed" in text
