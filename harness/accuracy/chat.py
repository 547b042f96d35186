"""A question as a chat: the model's own template, applied here, so that every engine is sent the same tokens."""

import hashlib
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from harness.errors import ConfigError
from harness.model import Model


@dataclass(frozen=True)
class ChatTemplate:
    """The chat template in a model's folder.

    Attributes
    ----------
    model_path : str
        The folder.
    arguments : dict
        Passed to the template, such as ``enable_thinking: false``.
    """

    model_path: str
    arguments: dict[str, Any] = field(default_factory=dict)

    def render(self, user: str) -> str:
        """A conversation of one user message, up to where the assistant begins to answer."""
        text = _tokenizer(self.model_path).apply_chat_template(
            [{"role": "user", "content": user}], tokenize=False, add_generation_prompt=True, **self.arguments
        )
        assert isinstance(text, str)
        return text

    @property
    def sha256(self) -> str:
        """Hash of the template's text."""
        return hashlib.sha256(str(_tokenizer(self.model_path).chat_template).encode()).hexdigest()


def chat_template(model: Model, arguments: dict[str, Any]) -> ChatTemplate:
    """The model's template; raises `ConfigError` where it has none."""
    if not _tokenizer(model.path).chat_template:
        raise ConfigError(f"prompt: {model.name} has no chat template ({model.path}); allowed: completion")
    return ChatTemplate(model.path, dict(arguments))


@cache
def _tokenizer(path: str) -> Any:
    from transformers import AutoTokenizer  # takes a second: only where a chat is asked for

    return AutoTokenizer.from_pretrained(path)
