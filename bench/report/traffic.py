"""Tables of the traffic and of the client that made it: per tenant, per launch, and second by second."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from bench.analysis.metrics import LATENCIES
from bench.analysis.result import Analysis, CellResult, ClientFigures, DeploymentResult, TenantResult
from bench.report import form

Row = dict[str, Any]

NOT_RECORDED = "not recorded"
NOT_CLOSED = "no closed loop"
NO_SCHEDULE = "no schedule"


def client_rows(one: DeploymentResult) -> Iterable[Row]:
    """How the client fared, a row a measured launch."""
    for load, cell in one.cells.items():
        for launch in cell.launches:
            if (client := launch.client) is None:
                continue
            values = {key: value for key, value in asdict(client).items() if key not in ("ceiling", "lost_workers")}
            ceiling = client.ceiling or {}
            values |= {f"ceiling_{key}": ceiling.get(key) for key in ("streams", "tokens_per_s", "requests_per_s")}
            del values["calibration_asked"]
            row = {"load": load, "block": launch.block, "replica": launch.replica, "state": cell.state}
            yield row | {key: NOT_RECORDED if value is None else value for key, value in values.items()}


def pace_rows(one: DeploymentResult) -> Iterable[Row]:
    """How evenly tokens came."""
    shares = ("packed_tokens_share", "buffered_tokens_share", "stalled_tokens_share", "stalled_time_share")
    for load, cell in one.cells.items():
        drift = cell.drift
        absent = f"not measured: {cell.reason or 'no request of three tokens or more'}"
        yield {
            "load": load,
            "itl_drift_ms_per_1k_tokens": drift.ms_per_1k_tokens if drift else absent,
            "itl_drift_low": drift.low if drift else absent,
            "itl_drift_high": drift.high if drift else absent,
            "drift_requests": drift.requests if drift else 0,
            **{name: cell.means.get(name, f"not measured: {cell.reason or 'no token'}") for name in shares},
        }


def tenant_rows(one: DeploymentResult) -> Iterable[Row]:
    """Each tenant's own results."""
    rates = (
        "output_tokens_per_s",
        "input_tokens_per_s",
        "total_tokens_per_s",
        "steady_output_tokens_per_s",
        "request_rate_asked_rps",
        "request_rate_attained_rps",
    )
    for load, cell in one.cells.items():
        for tenant in cell.tenants.values():
            absent = f"not measured: {cell.reason or 'no request of it'}"
            row: Row = {
                "load": load,
                "tenant": tenant.tenant,
                "requests": tenant.requests,
                "failed_requests": tenant.failed_requests,
                **{name: tenant.means.get(name, absent) for name in rates},
                "sla": tenant.sla or "none",
                "sla_met": "no limit" if tenant.sla_met is None else tenant.sla_met,
                "goodput_rps": tenant.means.get(f"goodput_rps.{tenant.sla}", "no limit"),
                "goodput_share": tenant.means.get(f"goodput_share.{tenant.sla}", "no limit"),
            }
            for metric in LATENCIES:
                found = {q.percent: q.value for q in tenant.quantiles.get(metric, ())}
                for percent in (50, 90, 99):
                    name = f"{metric.removesuffix('_ms')}_p{percent}_ms"
                    row[name] = found.get(percent, "not measured: too few values")
            yield row


def second_rows(one: DeploymentResult) -> Iterable[Row]:
    """Every launch second by second."""
    for load, cell in one.cells.items():
        for launch in cell.launches:
            if (series := launch.series) is None:
                continue
            columns: dict[str, Sequence[Any]] = {
                key: value for key, value in vars(series).items() if isinstance(value, tuple)
            }
            for index in range(len(series.arrivals)):
                row: Row = {"load": load, "block": launch.block, "replica": launch.replica}
                row["t_s"] = index * series.width_s
                yield row | {key: "none" if values[index] is None else values[index] for key, values in columns.items()}


def clients(analysis: Analysis) -> Iterable[dict[str, str]]:
    """For the page: the client under each load, at its worst over the launches."""
    several = len(analysis.plan.get("loads") or {}) > 1
    for d in analysis.deployments:
        for load, cell in d.cells.items():
            figures = [launch.client for launch in cell.launches if launch.client is not None]
            if figures:
                yield {"deployment": d.label, **({"load": load} if several else {}), **_client(cell, figures)}


def _client(cell: CellResult, figures: Sequence[ClientFigures]) -> dict[str, str]:
    def worst(name: str, pick: Any = max) -> float | None:
        known = [value for one in figures if (value := getattr(one, name)) is not None]
        return pick(known) if known else None

    rate, held = worst("attained_over_asked_rate", min), worst("attained_over_asked_concurrency", min)
    lag, loop = worst("send_lag_p99_ms"), worst("loop_lag_p99_ms")
    cpu = worst("cpu_share")
    return {
        "attained ÷ asked rate": NO_SCHEDULE if rate is None else form.share(rate),
        "attained ÷ asked concurrency": NOT_CLOSED
        if all(one.asked_concurrency is None for one in figures)
        else form.share(held),
        "send lag P99": NO_SCHEDULE if lag is None else form.milliseconds(lag),
        "loop lag P99": NOT_RECORDED if loop is None else form.milliseconds(loop),
        "CPU, of a core": NOT_RECORDED if cpu is None else form.share(cpu),
        "streams at once": _against(figures, "peak_streams", "streams"),
        "tokens/s at most": _against(figures, "peak_tokens_per_s", "tokens_per_s"),
        "requests/s at most": _against(figures, "peak_requests_per_s", "requests_per_s"),
        "verdict": cell.state if cell.state == "client-bound" else "not the client's",
    }


def _against(figures: Sequence[ClientFigures], name: str, limit: str) -> str:
    """A peak, and the ceiling where the client is calibrated."""
    ceilings = [one.ceiling[limit] for one in figures if one.ceiling and one.ceiling.get(limit) is not None]
    text = f"{max(getattr(one, name) for one in figures):,.0f}"
    return f"{text} of {min(ceilings):,.0f}" if ceilings else text


def tenants(analysis: Analysis) -> Iterable[dict[str, str]]:
    """For the page and the terminal: each tenant's own service."""
    several = len(analysis.plan.get("loads") or {}) > 1
    for d in analysis.deployments:
        for load, cell in d.cells.items():
            for tenant in cell.tenants.values():
                yield {"deployment": d.label, **({"load": load} if several else {}), **_tenant(tenant)}


def _tenant(tenant: TenantResult) -> dict[str, str]:
    met = {None: "–", True: "yes", False: "no"}[tenant.sla_met]

    def tail(metric: str) -> str:
        found = [q for q in tenant.quantiles.get(metric, ()) if q.percent == 90]
        return form.milliseconds(found[0].value) if found else form.NOT_MEASURED

    return {
        "tenant": tenant.tenant,
        "requests": f"{tenant.requests:,}",
        "failed": f"{tenant.failed_requests:,}",
        "output tok/s": form.number(tenant.means.get("output_tokens_per_s")),
        "TTFT P90": tail("ttft_ms"),
        "ITL P90": tail("itl_ms"),
        "SLA": tenant.sla or "–",
        "kept in every launch": met,
        "requests that kept it": form.share(tenant.means.get(f"goodput_share.{tenant.sla}")) if tenant.sla else "–",
    }
