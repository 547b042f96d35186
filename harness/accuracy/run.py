"""One accuracy task on a running server: items, lm-eval in a process of its own, results and samples."""

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from harness.accuracy.chat import chat_template
from harness.accuracy.job import Job, Outcome
from harness.accuracy.kinds.interface import Asking, Row, Share
from harness.accuracy.task import TASKS_DIR, Task, exercises, kind_of, mode_of, unsupported_on
from harness.accuracy.task_record import answered, asked_sha256, asking, notes, samples_of, scored
from harness.accuracy.under_load import BackgroundLoad
from harness.accuracy.worker_process import carry_out
from harness.backends.interface import Backend
from harness.errors import ConfigError, LaunchError
from harness.files import write_bytes, write_json
from harness.model import Model

SCHEMA_VERSION = 1
METRICS = {"loglikelihood": "accuracy (log-likelihood)", "generation": "accuracy (generation)"}


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
    background: BackgroundLoad | None = None,
) -> Row:
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
    background : BackgroundLoad, optional
        The load that `task.under_load` names.

    Returns
    -------
    dict
        The content of `results.json`. A server that can't do the task, or fails, is a result (`unsupported`,
        `failed`) with its reason.

    Raises
    ------
    ConfigError
        The task's data can't be read, or the model has no chat template.
    StorageError
        The results can't be written.
    """
    began = time.monotonic()
    if (task.under_load is None) != (background is None):
        raise ConfigError(f"under_load: {task.under_load} is not the load that was handed over")
    name = out_dir.name
    kind, mode = kind_of(task), mode_of(task, backend.reads_echo)
    chat = chat_template(model, task.chat_template_arguments) if task.prompt == "chat" else None
    share = _share(task, mode, Asking(model, seed, block, run_seed, chat))
    items_text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in share.rows)
    job = Job(
        task_yaml=str(TASKS_DIR / f"{kind.modes[mode]}.yaml"),
        base_url=base_url.rstrip("/"),
        served_name=served_name,
        tokenizer=model.path,
        token_ids=backend.takes_token_ids,
        context_tokens=context_tokens,
        num_concurrent=task.num_concurrent,
        timeout_s=task.timeout_s,
        answer_tokens=task.answer_tokens,
        chat=chat.arguments if chat else None,
    )
    results: Row = {
        "schema_version": SCHEMA_VERSION,
        "task": name,
        "kind": task.kind,
        "mode": mode,
        "metric": METRICS[mode],
        "state": "measured",
        "reason": None,
        "notes": [],
        "n": 0,
        "score": None,
        "other_scores": {},
        "chance": None,
        "margin_pp": task.margin_pp,
        "margin_relative_pct": task.margin_relative_pct,
        "context_tokens": task.context_tokens,
        "exercises": list(exercises(task, backend, prefix_reuse)),
        "errors": 0,
        "items": len(share.rows),
        "items_sha256": hashlib.sha256(items_text.encode()).hexdigest(),
        "items_repeated": share.repeated,
        "data_set_items": share.data_set_items,
        "block": block,
        "seed": seed,
        "run_seed": run_seed,
        **asking(job, chat, background),
    }
    outcome, samples = Outcome(), []
    if (reason := unsupported_on(task, backend)) is not None:
        outcome = Outcome(state="unsupported", reason=reason)
    else:
        say(f"{name}: {len(share.rows)} questions")

        def ask() -> Outcome:
            return carry_out(job, items_text, log_path=out_dir / "lm_eval.log", record_dir=record_dir)

        outcome, results["under_load"] = _beside(background, out_dir / "load", ask)
        samples = samples_of(outcome.samples, share.rows)
    results |= answered(outcome)
    if kind.score is not None and outcome.state == "measured":
        results |= kind.score(name, task, samples, share.rows)
    results |= scored(kind, samples, share.rows) if results["state"] == "measured" else {}
    results["errors"] = sum(sample["error"] is not None for sample in samples)
    results["asked_sha256"] = asked_sha256(results)
    results["notes"] = list(notes(results, samples))
    results["seconds"] = {**outcome.seconds, "total": round(time.monotonic() - began, 3)}
    write_bytes(out_dir / "samples.jsonl", "".join(json.dumps(one, allow_nan=False) + "\n" for one in samples).encode())
    write_json(out_dir / "results.json", results)
    return results


def _beside(background: BackgroundLoad | None, folder: Path, ask: Callable[[], Outcome]) -> tuple[Outcome, Row | None]:
    """Ask, beside a load where there is one; and what is known of the load."""
    if background is None:
        return ask(), None
    try:
        with background.running(folder) as rounds:
            outcome = ask()
    except LaunchError as error:
        return Outcome(state="failed", reason=str(error)), None
    return outcome, rounds.evidence(outcome.samples)


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
