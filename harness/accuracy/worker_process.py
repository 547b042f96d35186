"""lm-eval in a process of its own: it needs half a minute of imports and memory that the harness should not keep."""

import os
import sys
import tempfile
from dataclasses import asdict, replace
from pathlib import Path

import harness
from harness.accuracy.job import Job, Outcome
from harness.engine_log import log_tail
from harness.files import read_json, write_json
from harness.guard import guarded

_ENV = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TOKENIZERS_PARALLELISM": "true",
    "TQDM_DISABLE": "1",
    "NO_PROXY": "127.0.0.1,localhost",
}


def carry_out(job: Job, items_text: str, *, log_path: Path, record_dir: Path | None) -> Outcome:
    """What came of a job; a failed outcome when the process died.

    Parameters
    ----------
    job : Job
        Without `items_path` and `out_path`, which lie in a scratch folder.
    items_text : str
        The items, as JSON lines.
    log_path : Path
        Takes what lm-eval prints.
    record_dir : Path or None
        Where `harness.guard` notes the process, for the sweep of a later run.
    """
    with tempfile.TemporaryDirectory(prefix="kvmark-lm-eval-") as scratch:
        folder = Path(scratch)
        items_path, job_path, out_path = folder / "items.jsonl", folder / "job.json", folder / "outcome.json"
        items_path.write_text(items_text, encoding="utf-8")
        write_json(job_path, asdict(replace(job, items_path=str(items_path), out_path=str(out_path))))
        root = Path(harness.__file__).parents[1]
        env = {
            **_ENV,
            "HF_DATASETS_CACHE": str(folder / "datasets"),
            "PYTHONPATH": os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")])),
        }
        argv = [sys.executable, "-m", "harness.accuracy.lm_eval_worker", str(job_path)]
        with guarded(argv, env=env, log_path=log_path, cwd=folder, record_dir=record_dir) as worker:
            worker.wait()
            reason = worker.exit_reason()
        if out_path.exists():
            return Outcome(**read_json(out_path))
    return Outcome(state="failed", reason=f"lm-eval {reason}: {log_tail(log_path, 3)}")
