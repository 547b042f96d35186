"""Several tenants under one load: each has results of its own, under its own arrivals and its own SLA."""

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from bench.analysis import analyse
from bench.analysis.planned import is_closed, planned_load
from bench.report import write
from bench.report.html import page
from bench.report.tables import tables
from bench.report.terminal import render_terminal
from tests.bench.run_folder import LaunchSpec, build, deployment, effect, plan, request
from tests.bench.runs import BASE

TENANTS = {
    "chat": {"arrival": {"kind": "poisson", "rate_rps": 2}, "sla": "chat"},
    "batch": {"arrival": {"kind": "closed", "concurrency": 2}, "sla": {"ttft_p90_ms": 5000.0, "itl_p90_ms": 100.0}},
    "free": {"arrival": {"kind": "constant", "rate_rps": 1}, "sla": None},
}

ROWS = [
    # An open loop counts from when it was due: TTFT 200 and 600 (limit 500), and one that failed.
    request(0, tenant="chat", scheduled_ms=0, sent_ms=100, events_ms=[200, 240]),
    request(1, tenant="chat", scheduled_ms=1000, sent_ms=1100, events_ms=[1600, 1640]),
    request(2, tenant="chat", scheduled_ms=2000, sent_ms=2000, events_ms=[], error="http_status", ended_ms=2010),
    # A closed loop from the send: TTFT 3,000 and 4,000; ITL 50.
    request(3, tenant="batch", sent_ms=0, events_ms=[3000, 3050, 3100]),
    request(4, tenant="batch", sent_ms=0, events_ms=[4000, 4050, 4100]),
    request(5, tenant="free", scheduled_ms=0, sent_ms=0, events_ms=[50]),
    request(6, tenant="chat", phase="warmup", scheduled_ms=-900, sent_ms=-900, events_ms=[-800, -700]),
]


def run(root: Path, rows: list[dict[str, Any]] = ROWS) -> Path:
    loads = {"chat": {"title": "mix", "requests": 6, "arrival": None, "tenants": TENANTS}}
    the_plan = plan([deployment("vllm", "baseline")], blocks=2, loads=loads)
    launches = {(block, BASE, 1): LaunchSpec(rows=rows, effect=effect()) for block in range(2)}
    return build(root, the_plan, launches)


def test_each_tenant_has_its_own_results(tmp_path: Path) -> None:
    cell = analyse(run(tmp_path)).deployment(BASE).cells["chat"]
    assert list(cell.tenants) == ["chat", "batch", "free"]
    chat, batch, free = cell.tenants.values()
    assert (chat.requests, chat.failed_requests, chat.errors) == (6, 2, {"http_status": 2})
    assert [q.value for q in chat.quantiles["ttft_ms"]] == [600, float("inf")], "200, 600, ∞ in each launch"
    assert [q.value for q in batch.quantiles["ttft_ms"]] == [3000, 4000], "from the send"
    assert [q.n for q in batch.quantiles["itl_ms"]] == [8, 8]
    assert free.means["output_tokens_mean"] == 1
    assert cell.requests == chat.requests + batch.requests + free.requests
    assert [q.n for q in cell.quantiles["itl_ms"]] == [12, 12], "the warm-up's gap is not among them"


def test_goodput_is_under_the_tenants_own_sla(tmp_path: Path) -> None:
    chat, batch, free = analyse(run(tmp_path)).deployment(BASE).cells["chat"].tenants.values()
    assert (chat.sla, batch.sla, free.sla) == ("chat", "batch", None)
    assert chat.means["goodput_share.chat"] == pytest.approx(1 / 3), "600 ms is over 500"
    assert batch.means["goodput_share.batch"] == 1
    assert (chat.sla_met, batch.sla_met, free.sla_met) == (False, True, None)
    assert not any(name.startswith("goodput") for name in free.means)


def test_tables_and_page_have_them_where_they_are(tmp_path: Path) -> None:
    run_dir = run(tmp_path)
    analysis = analyse(run_dir)
    write(analysis, run_dir, tmp_path / "reports")
    found = tables(analysis)["tenants"].set_index("tenant")
    assert (
        found.loc["chat", "goodput_share"] == pytest.approx(1 / 3) and found.loc["free", "goodput_share"] == "no limit"
    )
    assert found["sla_met"].tolist() == [False, True, "no limit"]
    assert not found.isna().any().any()
    assert (run_dir / "tables" / "tenants.csv").is_file()
    console = Console(file=io.StringIO(), width=200)
    render_terminal(analysis, console)
    assert "batch" in console.file.getvalue() and "requests that kept it" in console.file.getvalue()  # type: ignore[attr-defined]
    assert "Tenants</h2>" in page(analysis) and "tenants chat, batch, free" in page(analysis)


def test_a_load_without_tenants_has_none(tmp_path: Path) -> None:
    launches = {(0, BASE, 1): LaunchSpec(rows=ROWS[:1], effect=effect())}
    analysis = analyse(build(tmp_path, plan([deployment("vllm", "baseline")], blocks=1), launches))
    assert analysis.deployment(BASE).cells["chat"].tenants == {}
    assert "tenants" not in tables(analysis) and "Tenants</h2>" not in page(analysis)


def test_a_tenant_that_sent_nothing_is_still_told(tmp_path: Path) -> None:
    cell = analyse(run(tmp_path, ROWS[:5])).deployment(BASE).cells["chat"]
    assert cell.tenants["free"].requests == 0 and cell.tenants["free"].quantiles == {}
    assert not tables(analyse(run(tmp_path, ROWS[:5])))["tenants"].isna().any().any()


def test_an_sla_that_the_scenario_does_not_have_limits_nothing() -> None:
    facts = {"tenants": {"a": {"arrival": {"kind": "poisson"}, "sla": "nowhere"}}}
    found = planned_load({"loads": {"mix": facts}, "sla": {}}, "mix")
    assert found.groups["a"].sla == "nowhere" and found.own_slas == {}


def test_one_closed_loop_among_tenants_makes_the_load_a_closed_one() -> None:
    assert is_closed({"tenants": TENANTS}) and not is_closed({"tenants": {"free": TENANTS["free"]}})
    assert is_closed({"arrival": {"kind": "closed", "concurrency": 1}})
