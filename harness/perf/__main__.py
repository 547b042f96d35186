"""Measure this project beside other tools of its kind, in one run: `make perf`.

    python -m harness.perf [--only ROW,…] [--peers NAME,…|none] [--out perf.json]

Same server, client on one core, server on another. Peers are installed at first use into environments of their own
under the cache. Writes a list of `{name, value, unit, peer, peer_value, ratio, bar, holds}` and prints it as a table.
Exit code: 0 when every bar holds, 1 otherwise.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

import harness.perf.traffic  # noqa: F401  (registers its rows)
from harness.errors import KVMarkError
from harness.files import write_bytes
from harness.perf.figure import ROWS, Figure, missed, table
from harness.perf.peers import Installed
from harness.perf.rig import ROOT, TINY, Rig, Sizes
from harness.traffic.calibrate.__main__ import BUSY_LOAD, transports
from harness.traffic.calibrate.ladder import split_cores
from harness.traffic.wire import compiled

EXIT_MISSED, EXIT_FAILED = 1, 2


def main(arguments: list[str] | None = None) -> int:
    """Measure; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help=f"rows to measure, of {', '.join(ROWS)}")
    parser.add_argument("--peers", help="names of peers to compare with; none: none (default: all)")
    parser.add_argument("--out", type=Path, default=ROOT / "perf.json")
    parser.add_argument("--tiny", action="store_true", help="a few requests only, to see that it works")
    parser.add_argument("--keep", type=Path, help="folder to keep the records of the last runs in")
    options = parser.parse_args(arguments)
    names = options.only.split(",") if options.only else list(ROWS)
    unknown = sorted(set(names) - set(ROWS))
    if unknown:
        parser.error(f"--only: unknown {', '.join(unknown)}; allowed: {', '.join(ROWS)}")
    wanted = None if options.peers is None else frozenset(options.peers.split(","))
    folder = Path(tempfile.mkdtemp(prefix="kvmark-perf-"))
    started = time.monotonic()
    try:
        figures = _measure(names, folder, wanted, TINY if options.tiny else Sizes())
        if options.keep is not None:
            shutil.copytree(folder, options.keep, dirs_exist_ok=True)
    except KVMarkError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_FAILED
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    write_bytes(
        options.out, (json.dumps([one.record() for one in figures], indent=2, ensure_ascii=False) + "\n").encode()
    )
    print(f"\n{table(figures)}\n\n{options.out} ({time.monotonic() - started:.0f} s)")
    short = missed(figures)
    for one in short:
        print(f"not reached: {one.name} ({one.bar})", file=sys.stderr)
    return EXIT_MISSED if short else 0


def _measure(names: list[str], folder: Path, peers: frozenset[str] | None, sizes: Sizes) -> list[Figure]:
    (client_core,), server_core = split_cores(1)
    if os.getloadavg()[0] > BUSY_LOAD:
        print(f"the machine is busy (load average {os.getloadavg()[0]:.1f}): figures may be those of other programs")
    own = transports("both" if compiled.built() else "pure")
    rig = Rig(folder, client_core, server_core, own, Installed(print, peers), sizes)
    figures: list[Figure] = []
    for name in names:
        print(f"measuring: {name}", flush=True)
        for figure in ROWS[name](rig):
            figures.append(figure)
            print(f"  {figure.name}: {figure.record()['value']} {figure.unit}", flush=True)
    return figures


if __name__ == "__main__":
    sys.exit(main())
