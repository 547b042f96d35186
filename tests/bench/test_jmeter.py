"""`python -m bench jmeter`: from a load's name to a plan."""

from pathlib import Path
from xml.etree import ElementTree

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from bench.app import jmeter
from harness.errors import ConfigError
from harness.model import Model, ModelShape


@pytest.fixture
def without_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that is only a tokenizer, a token a byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    model = Model("smollm2-135m", ModelShape(), str(tmp_path), None, "", "")
    monkeypatch.setattr("bench.jmeter.prepare", lambda *_: model)


@pytest.mark.usefixtures("without_weights")
def test_a_load_becomes_a_plan_beside_its_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert jmeter(["load=sharegpt-smoke", "model=smollm2-135m", "backend=vllm", f"out={tmp_path}"]) == 0
    assert "9 requests in" in capsys.readouterr().out
    assert ElementTree.parse(tmp_path / "sharegpt-smoke.jmx").getroot().tag == "jmeterTestPlan"
    first = (tmp_path / "sharegpt-smoke.csv").read_text().splitlines()[0]
    assert "smollm2-135m" in first and "ignore_eos" in first


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["load=sharegpt-smoke"], "out: say which folder"),
        (["load=[sharegpt-smoke,short-chat]", "out=x"], "load: a plan is of one; .*sharegpt-smoke, short-chat"),
        (["load=sharegpt-smok", "out=x"], "Did you mean 'sharegpt-smoke'"),
    ],
)
def test_what_is_wrong_is_named(arguments: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        jmeter(arguments)
