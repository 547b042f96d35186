"""A replay in a folder of its own, looked at from outside: its rows, its processes, its record while it runs."""

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow.parquet as pq

from harness.model import Model
from harness.traffic.client_options import ClientOptions
from harness.traffic.load import Load
from harness.traffic.records import SCHEMA
from harness.traffic.replay import replay
from harness.traffic.report import ReplayReport
from harness.traffic.schedule import build_schedule


class Cell:
    """One replay."""

    def __init__(self, model: Model, folder: Path) -> None:
        self.model, self.folder = model, folder
        self.progress: list[tuple[int, int]] = []
        self.env: dict[str, str] = {}
        self.stop = threading.Event()

    def schedule(self, load: Load, **extras: Any) -> Path:
        path = self.folder / "schedule.jsonl"
        build_schedule(
            load, model=self.model, served_name="m", request_extras=lambda tokens: extras, context_tokens=1024, seed=1,
            path=path,
        )  # fmt: skip
        return path

    def replay(
        self,
        load: Load,
        base_url: str,
        options: ClientOptions | None = None,
        say: Callable[[str], None] | None = None,
        **extras: Any,
    ) -> ReplayReport:
        return self.replay_schedule(self.schedule(load, **extras), load, base_url, options, say)

    def replay_schedule(
        self,
        path: Path,
        load: Load,
        base_url: str,
        options: ClientOptions | None = None,
        say: Callable[[str], None] | None = None,
    ) -> ReplayReport:
        return replay(
            load, schedule_path=path, base_url=base_url, out_dir=self.folder, env=self.env, on_progress=self.note,
            options=options, say=say, stop=self.stop,
        )  # fmt: skip

    def note(self, done: int, total: int) -> None:
        self.progress.append((done, total))

    def rows(self) -> list[dict[str, Any]]:
        table = pq.read_table(self.folder / "requests.parquet")
        assert table.schema.equals(SCHEMA)
        rows: list[dict[str, Any]] = table.to_pylist()
        return rows

    def sessions(self) -> dict[str, dict[str, Any]]:
        """The schedule's sessions by id."""
        lines = (self.folder / "schedule.jsonl").read_text().splitlines()[2:]
        return {line["session_id"]: line for line in map(json.loads, lines)}

    def started(self) -> int:
        """Requests that have been started."""
        times = [np.fromfile(path, np.int64)[1::2] for path in self.folder.glob("inflight-*.bin")]
        return sum(int((one > 0).sum()) for one in times)

    def processes(self) -> list[psutil.Process]:
        """The client's processes: master first."""
        mark = str(self.folder)
        found = []
        for process in psutil.process_iter(["cmdline"]):
            words = process.info["cmdline"] or []
            if mark in words and "--locustfile" in words:
                found.append(process)
        return sorted(found, key=lambda process: process.pid)

    def workers(self) -> dict[int, int]:
        """Process of each worker by its number, from its own record."""
        pids = {}
        for path in self.folder.glob("stream-*.bin"):
            data = path.read_bytes()
            if len(data) > 5:
                pids[int(path.stem[7:])] = json.loads(data[5 : 5 + int.from_bytes(data[:4], "little")])["pid"]
        return pids

    def once_under_way(self, act: Callable[[], object], requests: int = 2, wait_s: float = 0.3) -> threading.Thread:
        """Do something when so many requests have been started, a little later."""

        def wait() -> None:
            deadline = time.monotonic() + 60
            while time.monotonic() < deadline and self.started() < requests:
                time.sleep(0.02)
            time.sleep(wait_s)
            act()

        thread = threading.Thread(target=wait)
        thread.start()
        return thread
