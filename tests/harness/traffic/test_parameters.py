"""A part of YAML held against its dataclass."""

from dataclasses import dataclass
from typing import Any

import pytest

from harness.errors import ConfigError
from harness.traffic.parameters import checked, need


@dataclass(frozen=True)
class Keys:
    path: str
    tokens: int = 1
    rate: float = 1.0
    limit: int | None = None
    own: Any = None

    def __post_init__(self) -> None:
        need(self.tokens >= 1, f"tokens: {self.tokens} must be >= 1")


def test_values_come_through_and_whole_numbers_are_numbers() -> None:
    assert checked(Keys, {"path": "a", "rate": 2, "limit": 3, "own": {"any": 1}}, "x") == Keys(
        "a", 1, 2.0, 3, {"any": 1}
    )
    assert isinstance(checked(Keys, {"path": "a", "rate": 2}, "x").rate, float)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, r"^x\.path: is missing"),
        (
            {"path": "a", "token": 2},
            r"^x: key 'token' is unknown\. Did you mean 'tokens'\? Allowed: path, tokens, rate",
        ),
        ({"path": 3}, r"^x\.path: 3 must be a text"),
        ({"path": None}, r"^x\.path: None must be a text"),
        ({"path": "a", "tokens": True}, r"^x\.tokens: True must be a whole number"),
        ({"path": "a", "tokens": 1.5}, r"^x\.tokens: 1.5 must be a whole number"),
        ({"path": "a", "tokens": 0}, r"^x\.tokens: 0 must be >= 1"),
        ({"path": "a", "rate": float("nan")}, r"^x\.rate: nan must be a number"),
        ({"path": "a", "limit": "3"}, r"^x\.limit: '3' must be a whole number or null"),
    ],
)
def test_what_is_wrong_is_named_with_its_key(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        checked(Keys, values, "x")
