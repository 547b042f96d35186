"""The lines of a log that tell a person why a start failed."""

import pytest

from harness.engine_log import plain, useful_lines

VLLM_BAD_BLOCKS = """\
(APIServer pid=9746) INFO 11-29 14:41:15 [api_utils.py:286] non-default args: {'port': 18556}
(APIServer pid=9746) WARNING 11-29 14:41:25 [cpu.py:224] Triton is not installed. triton-cpu is expected on x86 CPUs.
Loading safetensors checkpoint shards: 100% Completed | 1/1 [00:00<00:00,  1.89it/s]
(EngineCore pid=10055) ERROR 11-29 14:41:32 [core.py:1200] EngineCore failed to start.
(EngineCore pid=10055) ERROR 11-29 14:41:32 [core.py:1200] Traceback (most recent call last):
(EngineCore pid=10055) ERROR 11-29 14:41:32 [core.py:1200]   File "/x/vllm/v1/engine/core.py", line 900, in run
(EngineCore pid=10055) ERROR 11-29 14:41:32 [core.py:1200]     self.check(blocks)
(EngineCore pid=10055) ERROR 11-29 14:41:32 [core.py:1200] ValueError: To serve at least one request with the model's \
max seq len (6400), 0.14 GiB KV cache is needed
(APIServer pid=9746) Traceback (most recent call last):
(APIServer pid=9746)   File "/x/vllm/entrypoints/cli/main.py", line 70, in main
(APIServer pid=9746) RuntimeError: Engine core initialization failed. See root cause above.
"""
LLAMA_NO_FILE = """\
0.00.001.927 I srv          init: build_info: b0-unknown
0.00.003.942 I srv          init: loading model
0.00.004.016 E llama_model_load: error loading model: failed to open GGUF file '/nowhere.gguf'
0.00.004.020 E srv    load_model: failed to load model, '/nowhere.gguf'
"""


@pytest.mark.parametrize(
    ("log", "told", "silent_on"),
    [
        (VLLM_BAD_BLOCKS, ["0.14 GiB KV cache is needed", "EngineCore failed to start"], ["Triton", "it/s", 'File "']),
        (LLAMA_NO_FILE, ["failed to open GGUF file", "failed to load model"], ["build_info", "loading model\n"]),
        ("\x1b[31mserve: error: unrecognized arguments: --swap-space\x1b[0m\n", ["unrecognized arguments"], ["\x1b"]),
        ("hello\nworld\n", ["hello", "world"], []),
    ],
)
def test_the_cause_is_told_and_the_noise_is_not(log: str, told: list[str], silent_on: list[str]) -> None:
    text = "\n".join(useful_lines(log)) + "\n"
    assert [words for words in told if words not in text] == []
    assert [words for words in silent_on if words in text] == []


def test_the_last_lines_count_and_a_repeated_one_once() -> None:
    log = "".join(f"ValueError: number {n}\n" for n in range(50)) + "ValueError: the last\n" * 30
    lines = useful_lines(log, limit=6)
    assert len(lines) <= 6
    assert lines.count("ValueError: the last") == 1


def test_a_log_without_a_complaint_gives_its_tail() -> None:
    assert useful_lines("".join(f"step {n}\n" for n in range(40)), limit=3) == ["step 37", "step 38", "step 39"]


def test_an_empty_log_gives_nothing() -> None:
    assert useful_lines("") == []


def test_process_prefix_and_colour_go() -> None:
    assert plain("\x1b[0;36m(EngineCore pid=7)\x1b[0;0m \x1b[1mhello\x1b[0m  ") == "hello"
