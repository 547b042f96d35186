"""Questions posed as chats, through lm-eval, against a server that keeps what it was sent."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from examples import example, share
from mimic import MimicServer
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoTokenizer

from harness.accuracy.chat import ChatTemplate
from harness.accuracy.job import Job, Outcome
from harness.accuracy.kinds import kinds
from harness.accuracy.lm_eval_worker import run
from harness.accuracy.served_completions import Prompt, ServedCompletions
from harness.accuracy.stop_list import Stop, stop_of_chat, stop_of_completion
from harness.accuracy.task import TASKS_DIR, Task, check_on_model
from harness.errors import ConfigError
from harness.model import Model


@pytest.fixture
def ask(server: MimicServer, model: Model, data_dir: Path, tmp_path: Path) -> Any:
    def asked(kind: str, mode: str, path: str, **more: Any) -> Outcome:
        rows = share(example(kind, data_dir), model).rows
        (tmp_path / "items.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        job: dict[str, Any] = {
            "task_yaml": str(TASKS_DIR / f"{kinds()[kind].modes[mode]}.yaml"),
            "base_url": server.url(path),
            "served_name": "m",
            "tokenizer": model.path,
            "token_ids": True,
            "context_tokens": 4096,
            "num_concurrent": 1,
            "timeout_s": 20.0,
            "chat": {},
            "items_path": str(tmp_path / "items.jsonl"),
        }
        return run(Job(**{**job, **more}))

    return asked


@pytest.mark.parametrize(("kind", "mode"), [("gsm8k", "generation"), ("boolq", "loglikelihood")])
@pytest.mark.parametrize("as_ids", [True, False])
def test_the_template_is_applied_once_and_its_special_tokens_are_tokens(
    ask: Any, server: MimicServer, model: Model, kind: str, mode: str, as_ids: bool
) -> None:
    path = f"sound+chat-{kind}-{as_ids}"
    outcome = ask(kind, mode, path, token_ids=as_ids)
    assert outcome.state == "measured", outcome.reason
    tokenizer = AutoTokenizer.from_pretrained(model.path)
    for sample in outcome.samples:
        prompt = sample["prompt"]
        assert prompt.startswith("<|begin|><|turn|>user\n") and prompt.endswith("<|stop|>\n<|turn|>assistant\n")
        assert (prompt.count("<|begin|>"), prompt.count("<|turn|>")) == (1, 2)
        ids = tokenizer(prompt, add_special_tokens=False).input_ids
        assert ids[0] == tokenizer.bos_token_id and ids.count(tokenizer.bos_token_id) == 1
    lengths = {len(tokenizer(one["prompt"], add_special_tokens=False).input_ids) for one in outcome.samples}
    sent = {seen["body"]["prompt"] for seen in server.seen(path)}
    answers = 0 if mode == "generation" else 1  # the choices of `boolq` take a token each, or a few letters
    assert {length + answers for length in lengths} & sent or not as_ids
    texts = [seen["text"] for seen in server.seen(path)]
    assert all("<|turn|>assistant\n" in text for text in texts)


def test_arguments_reach_the_template(ask: Any) -> None:
    outcome = ask("boolq", "generation", "sound+terse", chat={"terse": True})
    assert all(sample["prompt"].endswith("assistant\nBriefly: ") for sample in outcome.samples)


def test_a_chat_ends_with_its_turn_and_not_where_a_completion_would(ask: Any, server: MimicServer) -> None:
    one, many = (ask("gsm8k", "generation", f"sound+chat-at-{n}", num_concurrent=n) for n in (1, 8))
    assert one.stop == many.stop
    assert one.stop[:2] == ["<|stop|>", "<|end|>"]
    assert not any(text.isspace() for text in one.stop), "a chat's answer may begin with a line break"
    assert len(one.stop_token_ids) == 2
    asked = [seen["body"] for seen in server.seen("sound+chat-at-8") if seen["body"]["max_tokens"] > 1]
    assert {tuple(body["stop"]) for body in asked} == {tuple(one.stop)}
    assert {tuple(body["stop_token_ids"]) for body in asked} == {tuple(one.stop_token_ids)}


def test_a_model_without_a_template_is_refused_before_anything_is_launched(model: Model, tmp_path: Path) -> None:
    shutil.copytree(model.path, tmp_path / "plain")
    config = tmp_path / "plain" / "tokenizer_config.json"
    plain = Model("plain", model.shape, str(tmp_path / "plain"), None, "", "")
    chat = Task(context_tokens=400, prompt="chat")
    check_on_model("mine", chat, model)
    kept = {key: value for key, value in json.loads(config.read_text()).items() if key != "chat_template"}
    config.write_text(json.dumps(kept))
    with pytest.raises(ConfigError, match=r"accuracy\.mine\.prompt: plain has no chat template"):
        check_on_model("mine", chat, plain)
    check_on_model("mine", Task(context_tokens=400), plain)


def test_arguments_that_a_template_refuses_are_named(model: Model, tmp_path: Path) -> None:
    shutil.copytree(model.path, tmp_path / "strict")
    config = tmp_path / "strict" / "tokenizer_config.json"
    template = "{% if terse %}{{ raise_exception('terse is not for us') }}{% endif %}{{ messages[0]['content'] }}"
    config.write_text(json.dumps({**json.loads(config.read_text()), "chat_template": template}))
    strict = Model("strict", model.shape, str(tmp_path / "strict"), None, "", "")
    task = Task(context_tokens=400, prompt="chat", chat_template_arguments={"terse": True})
    with pytest.raises(ConfigError, match=r"accuracy\.mine\.chat_template_arguments: .*terse is not for us"):
        check_on_model("mine", task, strict)


UNTIL = ["\n", ".", "\n\n", "\ndef", "Question:", "42"]


def test_the_stop_list_of_a_completion_is_the_tasks_and_the_end_of_text(model: Model) -> None:
    tokenizer = AutoTokenizer.from_pretrained(model.path)
    assert stop_of_completion(UNTIL, tokenizer) == Stop((*UNTIL, "<|end|>"))


def test_the_stop_list_of_a_chat_keeps_what_begins_with_a_word(model: Model) -> None:
    tokenizer = AutoTokenizer.from_pretrained(model.path)
    found = stop_of_chat(UNTIL, tokenizer, ChatTemplate(model.path))
    assert found.texts == ("<|stop|>", "<|end|>", "Question:", "42")
    assert found.token_ids == tuple(tokenizer.convert_tokens_to_ids(["<|stop|>", "<|end|>"]))


@pytest.mark.parametrize(
    ("answer", "cut"),
    [("18<|stop|>\n<|turn|>user", "18"), ("18\nQuestion: what", "18\n"), ("\n18", "\n18"), ("", "")],
)
def test_an_answer_is_kept_up_to_its_first_stop(answer: str, cut: str) -> None:
    assert Stop(("Question:", "<|stop|>")).cut(answer) == cut


def test_a_server_that_is_sent_text_adds_the_beginning_of_text_itself(tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.WordLevel({"<s>": 0, "</s>": 1, "hi": 2, "?": 3}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    template = "<s>{% for message in messages %}{{ message['content'] }}</s>{% endfor %}"
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": template}))
    job = Job("", "http://127.0.0.1:1", "m", str(tmp_path), True, 100, 1, 1.0, chat={})
    as_ids, as_text = ServedCompletions(job), ServedCompletions(Job(**{**vars(job), "token_ids": False}))
    prompt = as_ids.apply_chat_template([{"role": "user", "content": "hi"}])
    assert prompt == "<s>hi</s>"
    (encoded,) = as_ids._encoded([prompt])
    assert as_ids._as_sent(Prompt(prompt, encoded)) == [0, 2, 1]
    assert as_text._as_sent(Prompt(prompt, encoded)) == "hi</s>"
