"""Find out what the load client can measure on this host: `make calibrate`.

    python -m harness.traffic.calibrate [--transport auto|pure|compiled|both] [--processes N] [--quick]

The client runs as in a cell, on cores of its own, against a bundled paced server on another core, at rising load; its
records are joined to the server's log of true send times. The ceiling is the highest load at which mean TTFT and mean
ITL are within 2 % of the truth. It is kept in the cache, and every later cell carries it. Takes about two minutes.
"""

import argparse
import os
import shutil
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness.errors import ConfigError, KVMarkError
from harness.files import write_bytes
from harness.traffic.calibrate import ceiling
from harness.traffic.calibrate.ladder import QUICK, Bench, Plan, climb, split_cores
from harness.traffic.calibrate.paced_server import has_compiled_loop
from harness.traffic.calibrate.plot import plot
from harness.traffic.client_options import ClientOptions

EXIT_FAILED = 1
BUSY_LOAD = 0.5
"""Load average at the start above which other programs are taken to disturb the measurement."""

UNITS = {"streams": "streams", "rate": "requests/s", "capacity": "connections"}
HEADER = (
    f"{'load':>21} {'TTFT error %':>17} {'ITL error %':>17} {'E2E error %':>13} {'delay ms':>13} {'tokens/s':>9} "
    f"{'requests/s':>10} {'CPU s':>6}\n{'':>21} {'mean':>8} {'P99':>8} {'mean':>8} {'P99':>8} {'mean':>13} "
    f"{'mean':>6} {'P99':>6}"
)


def main(arguments: list[str] | None = None) -> int:
    """Calibrate; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--transport", choices=("auto", "pure", "compiled", "both"), default="auto")
    parser.add_argument("--processes", type=int, default=1, help="client processes; each needs a core")
    parser.add_argument("--quick", action="store_true", help="a few small steps, to see that it works; not a ceiling")
    parser.add_argument("--keep", type=Path, help="folder for the last step's records and log")
    options = parser.parse_args(arguments)
    try:
        for transport in transports(options.transport):
            _calibrate(transport, options.processes, options.quick, options.keep)
    except KVMarkError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_FAILED
    return 0


def transports(wanted: str) -> list[str]:
    """The transports that a choice stands for on this host."""
    from harness.traffic.wire import compiled

    if wanted == "auto":
        return ["compiled" if compiled.built() else "pure"]
    if wanted in ("compiled", "both") and not compiled.built():
        raise ConfigError("transport: the compiled one was not built here (no C compiler at set-up)")
    return ["pure", "compiled"] if wanted == "both" else [wanted]


def _calibrate(transport: str, processes: int, quick: bool, keep: Path | None) -> None:
    cores, server_core = split_cores(processes)
    server = "compiled" if has_compiled_loop() else "python"
    print(f"load client: {transport}, cores {cores}; paced server: {server}, core {server_core}")
    if os.getloadavg()[0] > BUSY_LOAD:
        print(f"the machine is busy (load average {os.getloadavg()[0]:.1f}): errors may be those of other programs")
    print(HEADER)
    folder = Path(tempfile.mkdtemp(prefix="kvmark-calibrate-"))
    path = ceiling.path_for_host()
    try:
        client = ClientOptions(processes=processes, transport=transport, cores=cores)
        steps = climb(
            Bench(folder, client, server_core), QUICK if quick else Plan(), lambda step: print(_row(step), flush=True)
        )
        if keep is not None:
            shutil.copytree(folder, keep, dirs_exist_ok=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    created = datetime.now(UTC).isoformat(timespec="seconds")
    entry = ceiling.store(
        path, steps, transport=transport, processes=processes, server=server, created=created, quick=quick
    )
    picture = path.with_name(f"{path.stem}-{ceiling.name_of(entry)}.svg")
    write_bytes(picture, plot(entry).encode())
    print(_conclusion(entry))
    print(f"{path}\n{picture}")


def _row(step: ceiling.Step) -> str:
    exact = step.exactness
    errors = [exact.metrics[name].error_pct(figure) for name in ("ttft", "itl") for figure in ("mean", "p99")]
    # Where the first token is due at once, a relative error of TTFT means nothing.
    cells = " ".join(
        f"{'-':>8}" if step.kind == "capacity" or error != error else f"{error:>+8.2f}" for error in errors
    )
    e2e = "-" if step.kind == "capacity" else f"{exact.metrics['e2e'].error_pct():+.2f}"
    notes = [
        f"{exact.failed} failed" if exact.failed else "",
        f"{exact.unmatched} unmatched" if exact.unmatched else "",
        f"{exact.wrong_tokens} miscounted" if exact.wrong_tokens else "",
        "server at its limit" if step.server_bound else "",
        f"asked rate attained to {exact.attained_over_asked:.1%}"
        if exact.attained_over_asked < ceiling.ATTAINED
        else "",
        "" if step.kind == "capacity" or step.holds() else f"not within {ceiling.ERROR_PCT:g} %",
    ]
    return (
        f"{step.asked:>8,.0f} {UNITS[step.kind]:<12} {cells} {e2e:>13} {exact.delay_ms.mean:>6.2f} "
        f"{exact.delay_ms.p99:>6.2f} {exact.tokens_per_s:>9,.0f} {exact.requests_per_s:>10,.0f} "
        f"{step.client_cpu_s or 0:>6.2f}  {'; '.join(filter(None, notes))}"
    ).rstrip()


def _conclusion(entry: dict[str, Any]) -> str:
    lines = []
    for found in (entry["ceiling"], entry["wider"]):
        least = "at least " if found["is_lower_bound"] else ""
        streams = f"{least}{found['streams']:,} streams, {found['tokens_per_s']:,.0f} tokens/s"
        lines.append(f"within {found['error_pct']:g} %: {streams}, {found['requests_per_s']:,.0f} requests/s")
    if entry["quick"]:
        lines.append("a quick look: not taken for this host's ceiling")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
