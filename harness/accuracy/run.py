"""One accuracy task on a running server: items, lm-eval in a process of its own, results and samples."""

import hashlib
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import harness
from harness.accuracy.chat import chat_template
from harness.accuracy.kinds.interface import Asking, Kind, Share
from harness.accuracy.task import TASKS_DIR, Task, exercises, kind_of, mode_of, unsupported_on
from harness.backends.interface import Backend
from harness.engine_log import log_tail
from harness.errors import ConfigError
from harness.files import read_json, write_bytes, write_json
from harness.guard import guarded
from harness.model import Model

SCHEMA_VERSION = 1
METRICS = {"loglikelihood": "accuracy (log-likelihood)", "generation": "accuracy (generation)"}

_WORKER_ENV = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TQDM_DISABLE": "1",
    "NO_PROXY": "127.0.0.1,localhost",
}


def run_task(
    task: Task,
    *,
    backend: Backend,
    base_url: str,
    served_name: str,
    model: Model,
    context_tokens: int,
    seed: int,
    out_dir: Path,
    say: Callable[[str], None],
    record_dir: Path | None = None,
    block: int = 0,
    run_seed: int = 0,
    prefix_reuse: bool = True,
) -> dict[str, Any]:
    """Ask the task's questions and write `results.json` and `samples.jsonl` to `out_dir`.

    Parameters
    ----------
    task : Task
        Checked by `check_task`.
    backend, base_url, served_name, model
        The running server (root URL, without `/v1`) and what it serves.
    context_tokens : int
        Longest sequence that the server takes.
    seed : int
        The block's; generated questions are made from it, equal ones from equal seeds.
    out_dir : Path
        Folder of this task's results; its name is the task's, as in the configuration.
    say : callable
        Takes a line of progress.
    record_dir : Path, optional
        Where `harness.guard` notes the process, for the sweep of a later run.
    block : int
        Index of the block: which part of a data set it asks. Blocks share no question until all were asked.
    run_seed : int
        Equal for all launches of all blocks of a run: the order in which a data set is divided.
    prefix_reuse : bool
        Whether the server reuses prefixes, as its strategy has it.

    Returns
    -------
    dict
        The content of `results.json`. A server that can't do the task, or fails, is a result (`unsupported`,
        `failed`) with its reason.

    Raises
    ------
    ConfigError
        The task's data can't be read.
    StorageError
        The results can't be written.
    """
    began = time.monotonic()
    name = out_dir.name
    kind, mode = kind_of(task), mode_of(task, backend.reads_echo)
    chat = chat_template(model, task.chat_template_arguments) if task.prompt == "chat" else None
    share = _share(task, mode, Asking(model, seed, block, run_seed, chat))
    rows = share.rows
    items_text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    results: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "task": name,
        "kind": task.kind,
        "mode": mode,
        "metric": METRICS[mode],
        "n": 0,
        "score": None,
        "chance": None,
        "margin_pp": task.margin_pp,
        "margin_relative_pct": task.margin_relative_pct,
        "context_tokens": task.context_tokens,
        "exercises": list(exercises(task, backend, prefix_reuse)),
        "state": "measured",
        "reason": None,
        "errors": 0,
        "items": len(rows),
        "items_sha256": hashlib.sha256(items_text.encode()).hexdigest(),
        "items_repeated": share.repeated,
        "data_set_items": share.data_set_items,
        "block": block,
        "seed": seed,
        "run_seed": run_seed,
        "prompt": task.prompt,
        "chat_template_sha256": chat.sha256 if chat else None,
        "prompts_as_token_ids": backend.takes_token_ids,
        "num_concurrent": task.num_concurrent,
        "stop": [],
        "prompt_tokens": None,
        "seconds": {},
    }
    samples: list[dict[str, Any]] = []
    if (reason := unsupported_on(task, backend)) is not None:
        results |= {"state": "unsupported", "reason": reason}
    else:
        say(f"{name}: {len(rows)} questions")
        outcome = _ask(
            task, mode, backend, base_url, served_name, model, context_tokens, items_text, out_dir, record_dir
        )
        results |= {"state": outcome["state"], "reason": outcome["reason"], "stop": outcome["stop"]}
        results |= {"prompt_tokens": outcome["prompt_tokens"] or None, "seconds": outcome["seconds"]}
        samples = _samples(outcome["samples"], rows)
        if kind.score is not None and results["state"] == "measured":
            results |= kind.score(name, task, samples, rows)
    results["errors"] = sum(sample["error"] is not None for sample in samples)
    scores = [sample["score"] for sample in samples if sample["score"] is not None]
    if results["state"] == "measured":
        results |= {"n": len(scores), "score": sum(scores) / len(scores), "chance": _chance(kind, rows, samples)}
    results["seconds"] = {**results["seconds"], "total": round(time.monotonic() - began, 3)}
    write_bytes(out_dir / "samples.jsonl", "".join(json.dumps(one, allow_nan=False) + "\n" for one in samples).encode())
    write_json(out_dir / "results.json", results)
    return results


def _share(task: Task, mode: str, asking: Asking) -> Share:
    """The block's questions; those that can be asked in several ways carry the way in their names."""
    kind = kind_of(task)
    share = kind.share(task, asking)
    rows = share.rows
    if len(kind.modes) > 1:
        rows = [{**row, "item_id": f"{row['item_id']}#{mode}"} for row in rows]
    if len({row["item_id"] for row in rows}) != len(rows):
        raise ConfigError(f"item ids of {task.kind} are not unique in {task.data_dir or task.path or kind.hub}")
    return replace(share, rows=rows)


def _ask(
    task: Task,
    mode: str,
    backend: Backend,
    base_url: str,
    served_name: str,
    model: Model,
    context_tokens: int,
    items_text: str,
    out_dir: Path,
    record_dir: Path | None,
) -> dict[str, Any]:
    """Run the worker; its `Outcome`, or a failed one when the process died."""
    with tempfile.TemporaryDirectory(prefix="kvmark-lm-eval-") as scratch:
        folder = Path(scratch)
        (folder / "items.jsonl").write_text(items_text, encoding="utf-8")
        job = {
            "task_yaml": str(TASKS_DIR / f"{kind_of(task).modes[mode]}.yaml"),
            "items_path": str(folder / "items.jsonl"),
            "base_url": base_url.rstrip("/"),
            "served_name": served_name,
            "tokenizer": model.path,
            "token_ids": backend.takes_token_ids,
            "context_tokens": context_tokens,
            "num_concurrent": task.num_concurrent,
            "timeout_s": task.timeout_s,
            "out_path": str(folder / "outcome.json"),
        }
        write_json(folder / "job.json", job)
        root = Path(harness.__file__).parents[1]
        env = {
            **_WORKER_ENV,
            "HF_DATASETS_CACHE": str(folder / "datasets"),
            "PYTHONPATH": os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")])),
        }
        argv = [sys.executable, "-m", "harness.accuracy.lm_eval_worker", str(folder / "job.json")]
        log_path = out_dir / "lm_eval.log"
        with guarded(argv, env=env, log_path=log_path, cwd=folder, record_dir=record_dir) as worker:
            worker.wait()
            reason = worker.exit_reason()
        outcome_path = folder / "outcome.json"
        if outcome_path.exists():
            outcome: dict[str, Any] = read_json(outcome_path)
            return outcome
    return {
        "state": "failed",
        "reason": f"lm-eval {reason}: {log_tail(log_path, 3)}",
        "samples": [],
        "stop": [],
        "prompt_tokens": {},
        "seconds": {},
    }


def _samples(found: list[dict[str, Any]], rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The worker's samples in the schema of `samples.jsonl`."""
    return [
        {
            "item_id": one["item_id"],
            "document_id": one["document_id"],
            "context_tokens": rows[one["index"]].get("context_tokens"),
            "depth": rows[one["index"]].get("depth"),
            "score": one["score"],
            "answer": one["answer"],
            "target": one["target"],
            "choice_logprobs": one["choice_logprobs"],
            "prompt_sha256": hashlib.sha256(one["prompt"].encode()).hexdigest(),
            "error": one["error"],
        }
        for one in found
    ]


def _chance(kind: Kind, rows: list[dict[str, Any]], samples: list[dict[str, Any]]) -> float:
    """What the best constant answer scores on these items (open questions: 0)."""
    if kind.chance is not None:
        return kind.chance(rows)
    if not kind.choices:
        return 0.0
    most_common = Counter(sample["target"] for sample in samples).most_common(1)[0][1]
    return max(1.0 / kind.choices, most_common / len(samples))
