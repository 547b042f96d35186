"""The command line, in Hydra's grammar: `python -m bench [run|plan|report|compare|reproduce|jmeter|questions] key=…`.

`run` (the default) plans, prepares, measures block by block as Hydra jobs, analyses and reports. Only the block index
is swept, so Hydra's launchers (basic, submitit, Ray) spread whole blocks.
"""

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from types import FrameType
from typing import Any

import hydra
from omegaconf import DictConfig
from rich.console import Console

from bench import calibration, compare_view, reproduce_view, store
from bench import jmeter as jmeter_plan
from bench import questions as own_questions
from bench.analysis import analyse
from bench.analysis.result import Analysis
from bench.arguments import options, positive
from bench.compare_runs import compare_runs
from bench.config import (
    CONFIG_FILE,
    SCENARIOS,
    Config,
    config_yaml,
    read_config,
    register_schema,
)
from bench.identity import config_sha256, file_hashes, reproduction_sha256
from bench.overrides import quoted
from bench.plan import Plan, plan_record, read_plan
from bench.plan_view import print_plan
from bench.planner import make_plan
from bench.report import render_terminal, write
from bench.reproduce import WIDTH_PCT, reproduction
from bench.resolve import resolve
from bench.run import Prepared, exclusive_node, prepare, run_block
from bench.sides import Named, named
from bench.until import extend, most_blocks
from harness.errors import ConfigError, KVMarkError, SetupError, StorageError
from harness.files import read_json, write_bytes, write_json
from harness.guard import sweep
from harness.telemetry import hardware, software
from harness.traffic.text import corpus

REPORT_BYTES = 5_000_000
EXIT_FAILED_CELLS, EXIT_CONFIG, EXIT_SETUP, EXIT_STORAGE, EXIT_INTERRUPTED = 1, 2, 3, 4, 130
_EXIT_CODES: tuple[tuple[type[KVMarkError], int], ...] = (
    (ConfigError, EXIT_CONFIG),
    (SetupError, EXIT_SETUP),
    (StorageError, EXIT_STORAGE),
    (KVMarkError, EXIT_FAILED_CELLS),
)


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns the exit code. Errors that a user can act on are printed without a traceback."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    command = arguments.pop(0) if arguments and arguments[0] in _COMMANDS else "run"
    signal.signal(signal.SIGTERM, _as_interrupt)
    signal.signal(signal.SIGINT, _as_interrupt)  # also where a shell started us with it ignored
    try:
        return _COMMANDS[command](arguments)
    except KVMarkError as error:
        print(f"error: {error}", file=sys.stderr)
        return next(code for kind, code in _EXIT_CODES if isinstance(error, kind))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED


def run(arguments: list[str]) -> int:
    """Plan, prepare, measure, analyse, report."""
    if {"-h", "--help"} & set(arguments):
        print(__doc__)
        return 0
    if any(argument.startswith("-") for argument in arguments):
        raise ConfigError(
            f"options are written key=value; not understood: {' '.join(a for a in arguments if a[0] == '-')}"
        )
    overrides, config = resolve(arguments)
    machine = hardware()
    known = calibration.load(store.hardware_sha256(machine))
    plan = make_plan(config, known, [gpu["memory_bytes"] for gpu in machine["gpus"]])
    code, _ = _carry_out(overrides, config, plan, machine)
    return code


def _carry_out(
    overrides: list[str],
    config: Config,
    plan: Plan,
    machine: dict[str, Any],
    reproduces: dict[str, Any] | None = None,
) -> tuple[int, Path]:
    """Prepare, measure, analyse and report; the exit code, and the run's folder.

    A run that `reproduces` another one is never taken for an ordinary one, and gets no blocks beyond its plan's.
    """
    say = _say()
    print_plan(_console(), plan, config)
    results = Path(config.results_dir).resolve()
    store.need_room(Path(config.reports_dir).resolve(), REPORT_BYTES, "reports_dir")
    most = plan.blocks if reproduces else most_blocks(config.scenario)
    store.need_room(results, replace(plan, blocks=most).disk_bytes())
    with exclusive_node():  # a busy machine is refused before a folder is made
        for manifest in results.glob("*/*/manifest.json"):
            sweep(manifest.parent, say)
        prepared = prepare(config, plan, say)
    identity = store.Identity(
        config_sha256(config) if reproduces is None else reproduction_sha256(config, plan.blocks, reproduces),
        store.code_sha256(),
        store.hardware_sha256(machine),
        prepared.engines_sha256(),
    )
    with store.open_run(results, config.scenario_name, identity) as (folder, resumed):
        if resumed:
            say(f"resuming {folder}: an incomplete run of equal configuration, hardware, engines and code")
            begun = read_plan(folder)
            if replace(begun, blocks=plan.blocks) != plan:  # blocks may have been added
                say("it goes on by the plan that it began with:")
                print_plan(_console(), begun, config)
        else:
            _write_run(folder, config, plan, prepared, identity, machine, reproduces)
        try:
            measured = [*overrides, f"run_dir={quoted(str(folder))}"]
            _measure(measured)
            if reproduces is None:
                extend(folder, config, lambda block: _measure([*measured, f"hydra.sweeper.params={{+block:{block}}}"]))
        except Abort as abort:
            _incomplete(folder)
            raise abort.error from abort
        except KeyboardInterrupt:
            _incomplete(folder)
            print(f"interrupted: {folder} is incomplete; the same command resumes it", file=sys.stderr)
            return EXIT_INTERRUPTED, folder
        except BaseException:
            _incomplete(folder)
            raise
        return _finish(folder, config), folder


def plan(arguments: list[str]) -> int:
    """Print the plan; launch nothing."""
    _, config = resolve(arguments)
    machine = hardware()
    known = calibration.load(store.hardware_sha256(machine))
    print_plan(_console(), make_plan(config, known, [gpu["memory_bytes"] for gpu in machine["gpus"]]), config)
    return 0


def report(arguments: list[str]) -> int:
    """Rebuild tables and page from a run's folder: `report RUN [reports_dir=…]`."""
    folders = [argument for argument in arguments if "=" not in argument]
    options = dict(argument.split("=", 1) for argument in arguments if "=" in argument)
    if len(folders) != 1 or not (Path(folders[0]) / "manifest.json").exists():
        raise ConfigError(
            f"report: name one run folder, one that has a manifest.json; got: {' '.join(folders) or 'none'}"
        )
    if unknown := set(options) - {"reports_dir"}:
        raise ConfigError(f"report: unknown key {', '.join(sorted(unknown))}; allowed: reports_dir")
    _report(Path(folders[0]).resolve(), Path(options.get("reports_dir", "reports")).resolve())
    return 0


def compare(arguments: list[str]) -> int:
    """Two runs, or deployments of runs: `compare A B [reports_dir=…]`; exit code 1 where nothing is comparable."""
    given = options("compare", arguments, ("a", "b"), ("reports_dir",))
    result = compare_runs(named(given["a"], "a"), named(given["b"], "b"))
    console = _console()
    compare_view.show(result, console)
    for path in compare_view.write(result, Path(given.get("reports_dir", "reports")).resolve()):
        console.print(os.path.relpath(path), highlight=False, markup=False, soft_wrap=True)
    return 0 if result.compared else EXIT_FAILED_CELLS


def reproduce(arguments: list[str]) -> int:
    """Measure a run again, from its folder alone, and say which of its numbers came back.

    `reproduce RUN [with=RUN2] [width_pct=25] [results_dir=…] [reports_dir=…] [hydra…=…]`; `with` holds a finished run
    against it instead of measuring one. Exit code 1 where nothing is comparable, or launches failed.
    """
    keys = ("with", "width_pct", "results_dir", "reports_dir")
    given = options("reproduce", [a.removeprefix("reproduce.") for a in arguments], ("run",), keys, "hydra")
    first = named(given["run"], "run", whole=True)
    width_pct = positive(given, "width_pct", WIDTH_PCT)
    code = 0
    if "with" in given:
        second = named(given["with"], "with", whole=True)
    else:
        hydra_overrides = [f"{key}={value}" for key, value in given.items() if key.lstrip("+~").startswith("hydra")]
        code, second = _measure_again(first, given, hydra_overrides)
        if read_json(second.path / "manifest.json")["status"] not in store.FINISHED:
            return code
    result = reproduction(first, second, width_pct)
    console = _console()
    reproduce_view.show(result, console)
    for path in reproduce_view.write(result):
        console.print(os.path.relpath(path), highlight=False, markup=False, soft_wrap=True)
    return code if result.compared else EXIT_FAILED_CELLS


def _measure_again(first: Named, given: Mapping[str, str], hydra_overrides: list[str]) -> tuple[int, Named]:
    """The same configuration and plan (trimmed loads, seeds, blocks) in a run of its own, which can be resumed."""
    config, plan = read_config(first.path), read_plan(first.path)
    manifest = read_json(first.path / "manifest.json")
    blocks = plan.blocks if manifest["status"] in store.FINISHED else store.complete_blocks(first.path)
    if not blocks:
        raise ConfigError(f"{first.path} has no complete block: there is nothing to reproduce")
    config = replace(
        config,
        results_dir=given.get("results_dir", config.results_dir),
        reports_dir=given.get("reports_dir", config.reports_dir),
    )
    origin = {"run": manifest["run"], "path": str(first.path), "identity": manifest["identity"]}
    overrides = [*hydra_overrides, f"scenario.blocks={blocks}"]
    code, folder = _carry_out(overrides, config, replace(plan, blocks=blocks), hardware(), origin)
    return code, Named(folder)


def jmeter(arguments: list[str]) -> int:
    """Write a load as a JMeter plan: `jmeter load=NAME model=NAME out=FOLDER`; launch nothing."""
    written = jmeter_plan.export(arguments, resolve, _say())
    print(f"{written.requests} requests in {written.sessions} sessions; what JMeter can't measure: the plan's comment")
    for path in (*written.data, written.plan):
        print(os.path.relpath(path))
    return 0


def questions(arguments: list[str]) -> int:
    """Make questions out of a folder of texts: `questions from=FOLDER out=FILE.jsonl`; launch nothing."""
    for line in own_questions.make(arguments, resolve, _say()):
        print(line)
    return 0


class Abort(BaseException):
    """Nothing more can be measured (a full disk, a busy machine). Not an `Exception`: Hydra would go on with the next
    block, and print the error its own way.
    """

    def __init__(self, error: KVMarkError) -> None:
        super().__init__(str(error))
        self.error = error


def _measure(overrides: list[str]) -> None:
    register_schema()
    os.environ["HYDRA_FULL_ERROR"] = "1"  # a fault of ours comes with its whole traceback
    argv, sys.argv = sys.argv, ["bench", *overrides]
    try:
        _jobs()
    finally:
        sys.argv = argv


@hydra.main(version_base="1.3", config_path=str(SCENARIOS), config_name="config")
def _jobs(composed: DictConfig) -> None:
    """One Hydra job: a block. Works from what the run's folder holds, wherever the launcher put it."""
    folder = Path(str(composed.run_dir))
    config = read_config(folder)
    machine_sha256 = store.hardware_sha256(hardware())
    plan = read_plan(folder)
    prepared = prepare(config, plan, lambda text: None)
    try:
        run_block(folder, config, plan, prepared, int(composed.block or 0), machine_sha256)
    except KVMarkError as error:
        raise Abort(error) from error


def _write_run(
    folder: Path,
    config: Config,
    plan: Plan,
    prepared: Prepared,
    identity: store.Identity,
    machine: dict[str, Any],
    reproduces: dict[str, Any] | None,
) -> None:
    write_bytes(folder / CONFIG_FILE, config_yaml(config).encode())
    write_json(folder / "plan.json", plan_record(plan, config, prepared.backends))
    store.write_manifest(
        folder,
        {
            "schema_version": store.SCHEMA_VERSION,
            "scenario": config.scenario_name,
            "run": folder.name,
            "status": "running",
            "created": store.now(),
            "finished": None,
            "identity": asdict(identity),
            **({} if reproduces is None else {"reproduces": reproduces}),
            "hardware": machine,
            "software": software(),
            "git": store.git_state(),
            "engines": {
                name: {
                    "version": e.version,
                    "python": e.python,
                    "packages_sha256": e.packages_sha256,
                    "packages": e.packages,
                }
                for name, e in prepared.engines.items()
            },
            "models": {
                name: {"source": m.source, "content_sha256": m.content_sha256, "path": m.path, "facts": m.facts}
                for name, m in prepared.models.items()
            },
            "seed": config.seed,
            "data": {
                **{f"corpus of {name}": corpus(m.path).sha256 for name, m in prepared.models.items()},
                **file_hashes(config),
            },
        },
    )


def _finish(folder: Path, config: Config) -> int:
    plan = read_plan(folder)
    if not all(store.block_complete(folder, block) for block in range(plan.blocks)):
        store.set_status(folder, "incomplete")
        print(f"{folder} is incomplete; the same command resumes it", file=sys.stderr)
        return EXIT_FAILED_CELLS
    failed = [
        record
        for block in range(plan.blocks)
        for record in map(read_json, store.block_folder(folder, block).glob("*/launch.json"))
        if record["state"] == "failed"
    ]
    store.set_status(folder, "failed" if failed else "complete")
    analysis = _report(folder, Path(config.reports_dir).resolve())
    if all(options.command is None for options in config.backend.values()):
        _learn_noise(analysis)
    return EXIT_FAILED_CELLS if failed else 0


def _learn_noise(analysis: Analysis) -> None:
    """Keep the residuals of the primary comparisons: the next plan's smallest visible effect rests on them."""
    seen: dict[bool, float] = {}
    for c in analysis.comparisons:
        if (c.role, c.against) == ("primary", "engine") and c.residual_pct is not None:
            latency = c.metric.endswith("_ms")
            seen[latency] = max(seen.get(latency, 0.0), c.residual_pct / 100)
    if seen:
        calibration.learn_noise(store.hardware_sha256(hardware()), throughput=seen.get(False), latency=seen.get(True))


def _report(folder: Path, reports: Path) -> Analysis:
    analysis = analyse(folder)
    paths = write(analysis, folder, reports)
    console = _console()
    render_terminal(analysis, console)
    for path in (*paths, folder / "tables", folder):
        console.print(os.path.relpath(path), highlight=False, markup=False, soft_wrap=True)
    return analysis


def _incomplete(folder: Path) -> None:
    with contextlib.suppress(StorageError):  # on a full disk it stays "running", which nobody holds: incomplete too
        store.set_status(folder, "incomplete")


def _as_interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _console() -> Console:
    """Standard output; wide enough for the tables where it isn't a terminal."""
    return Console() if sys.stdout.isatty() else Console(width=180, no_color=True)


def _say() -> Callable[[str], None]:
    return lambda text: print(text, file=sys.stderr, flush=True)


_COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "run": run,
    "plan": plan,
    "report": report,
    "compare": compare,
    "reproduce": reproduce,
    "jmeter": jmeter,
    "questions": questions,
}
