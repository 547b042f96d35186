import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from harness.model import Model, ModelShape

sys.path.insert(0, str(Path(__file__).parent))  # helpers that lie beside the tests
from mimic import MimicServer

CHAT_TEMPLATE = (
    "<|begin|>{% for message in messages %}<|turn|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|stop|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|turn|>assistant\n{% if terse %}Briefly: {% endif %}{% endif %}"
)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """A model that is only a tokenizer: byte-level BPE, learned from the corpus itself."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1500,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|end|>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator([topics["assert"], topics["class"], topics["for"]], trainer)
    tokenizer.add_special_tokens(["<|begin|>", "<|turn|>", "<|stop|>"])
    folder = tmp_path_factory.mktemp("model")
    tokenizer.save(str(folder / "tokenizer.json"))
    kind = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end|>", "bos_token": "<|begin|>"}
    kind["chat_template"] = CHAT_TEMPLATE
    (folder / "tokenizer_config.json").write_text(json.dumps(kind))
    return Model("tiny", ModelShape(vocab=tokenizer.get_vocab_size()), str(folder), None, "", "")


@pytest.fixture(scope="session")
def server(model: Model) -> Iterator[MimicServer]:
    """The server of `mimic_server.py`, in a process of its own."""
    program = Path(__file__).with_name("mimic_server.py")
    argv = [sys.executable, str(program), f"{model.path}/tokenizer.json"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield MimicServer(f"http://127.0.0.1:{int(process.stdout.readline())}")
        process.kill()


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny data set of each kind, in the layout of a user's folder; each question carries its answer as a key."""
    folder = tmp_path_factory.mktemp("data")
    rows: dict[str, list[dict[str, Any]]] = {
        "gsm8k_test": [
            {"id": f"g/{i}", "question": f"How many? [key: so #### {i * 1001:,}]", "answer": f"so\n#### {i * 1001:,}"}
            for i in range(12)
        ],
        "gsm8k_fewshot5": [{"id": "t/0", "question": "How many is one?", "answer": "One.\n#### 1"}],
        "mmlu_test": [
            {
                "id": f"m/{i}",
                "subject": f"subject_{i % 2}",
                "question": f"Which letter, in {i}? [key: {'ABCD'[i % 4]}]",
                "choices": ["w", "x", "y", "z"],
                "answer": i % 4,
            }
            for i in range(12)
        ],
        "mmlu_dev": [
            {"id": "d/0", "subject": "subject_1", "question": "Example?", "choices": ["p", "q", "r", "s"], "answer": 2}
        ],
        "boolq_val": [
            {"id": f"b/{i}", "passage": f"T {i // 2}.", "question": f"{i} [key: {word}]", "label": int(word == "yes")}
            for i, word in enumerate(["yes", "no", "no"] * 4)
        ],
        "kv75": [
            {
                "id": f"k/{i}",
                "records": json.dumps({f"{n * 37 % 64:06x}": f"{n * 1009:08x}" for n in range(12)}),
                "key": f"{i * 37 % 64:06x}",
                "value": f"{i * 1009:08x}",
            }
            for i in range(12)
        ],
        "humaneval": [
            {
                "task_id": f"HumanEval/{i}",
                "prompt": f"def add{i}(a, b):\n    # [key:    return a + b{' + 1' * (i % 2)}]\n   ",
                "test": "def check(candidate):\n    assert candidate(2, 3) == 5\n",
                "entry_point": f"add{i}",
            }
            for i in range(4)
        ],
        "own": [
            {
                "id": f"o/{i}",
                "document": f"Text {i // 3}.",
                "question": f"Which, in {i}? [key: {'ABC'[i % 3]}]",
                "choices": ["x", "y", "z"][: 2 + (i % 3 == 2)],
                "answer": "xyz"[i % 3],
            }
            for i in range(12)
        ],
    }  # fmt: skip
    for name, found in rows.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in found))
    return folder
