import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from harness.model import Model, ModelShape

# Busy machines are slow at random; a slow example is no failure.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


@dataclass
class PacedServer:
    base_url: str
    log_path: Path

    def url(self, behaviour: str = "") -> str:
        return f"{self.base_url}/{behaviour}".rstrip("/")

    def log(self, requests: int) -> list[dict[str, Any]]:
        """What the server saw, as soon as it has written down so many requests."""
        deadline = time.monotonic() + 20
        lines: list[str] = []
        while len(lines) < requests and time.monotonic() < deadline:
            time.sleep(0.05)
            lines = self.log_path.read_text().splitlines() if self.log_path.exists() else []
        return [json.loads(line) for line in lines]


@contextmanager
def started_server(log_path: Path) -> Iterator[PacedServer]:
    """The server of `paced_server.py`, in a process of its own."""
    program = Path(__file__).with_name("paced_server.py")
    with subprocess.Popen([sys.executable, program, "0", log_path], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        try:
            yield PacedServer(f"http://127.0.0.1:{port}", log_path)
        finally:
            process.kill()


@pytest.fixture
def paced_server(tmp_path: Path) -> Iterator[PacedServer]:
    with started_server(tmp_path / "server.jsonl") as server:
        yield server


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """A model that is only a tokenizer: byte-level BPE with a small vocabulary, learned from the corpus itself."""
    from pydoc_data.topics import topics

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=1000, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([topics["assert"], topics["class"], topics["for"]], trainer)
    folder = tmp_path_factory.mktemp("model")
    tokenizer.save(str(folder / "tokenizer.json"))
    return Model("tiny", ModelShape(), str(folder), None, "", "")
