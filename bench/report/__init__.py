"""From an analysis to what people read: terminal, tables, page. Reads nothing but the analysis."""

from pathlib import Path

from bench.analysis import save
from bench.analysis.result import Analysis
from bench.report.html import page
from bench.report.tables import write_tables
from bench.report.terminal import render_terminal
from harness.files import write_bytes

__all__ = ["render_terminal", "write"]


def write(analysis: Analysis, run_dir: Path, reports_dir: Path) -> list[Path]:
    """Write `analysis.json` and `tables/` into the run's folder and the page into `reports_dir`; returns the page."""
    save(analysis, run_dir)
    write_tables(analysis, run_dir)
    path = reports_dir / analysis.scenario / f"{run_dir.name}.html"
    write_bytes(path, page(analysis).encode())
    return [path]
