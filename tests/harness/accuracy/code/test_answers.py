"""The program in an answer: completions and chats, in the forms that models use."""

import pytest

from harness.accuracy.code.answers import alone, program
from harness.accuracy.lm_eval_worker import load_yaml
from harness.accuracy.task import TASKS_DIR

PROMPT = 'import math\n\n\ndef area(r):\n    """Of a circle."""\n'
BODY = "    if r < 0:\n        return None\n    return math.pi * r**2\n"
FLUSH = "if r < 0:\n    return None\nreturn math.pi * r**2\n"
WHOLE = f"def area(r):\n{BODY}"


def result(answer: str, *, chat: bool, prompt: str = PROMPT) -> object:
    """What the program's function returns for 1; the texts here are ours."""
    names: dict[str, object] = {}
    exec(program(prompt, answer, "area", chat=chat), names)
    return names["area"](1)  # type: ignore[operator]


COMPLETIONS = {
    "the body": BODY,
    "a body that closes a block": f"{BODY}```\n\nThis returns the area.",
    "the whole function again": WHOLE,
    "a block at once": f"```python\n{WHOLE}```",
    "imports and the whole": f"import math\n\n{WHOLE}",
}
CHATS = {
    "a block": f"```python\n{WHOLE}```",
    "a block between sentences": f"Sure! Here's the function:\n\n```python\n{WHOLE}```\n\nIt uses `math.pi`.",
    "a block without a language": f"```\n{WHOLE}```",
    "a block that is cut off": f"```py\n{WHOLE}",
    "a tilde block": f"~~~python\n{WHOLE}~~~",
    "an indented block": "1. Like so:\n\n" + "".join(f"   {line}\n" for line in f"```python\n{WHOLE}```".split("\n")),
    "another block first": f"Run:\n```bash\npip install x\n```\nthen\n```python\n{WHOLE}```",
    "usage before the function": f"```python\nprint(area(2)) if False else 0\n```\n```python\n{WHOLE}```",
    "the function with an example": f"```python\n{WHOLE}\nassert area(-1) is None\n```",
    "only the body": f"```python\n{BODY}```",
    "only the body, flush left": f"```python\n{FLUSH}```",
    "only the body, its first line flush left": "```python\nx = r**2\n    return math.pi * x\n```",
    "the whole without a block": WHOLE,
    "the whole without a block, between sentences": f"The function is:\n{WHOLE}\nThis works for all r.",
    "the body without a block": BODY,
    "thoughts first": f"<think>\n```python\ndef area(r): return 0\n```\n</think>\n```python\n{WHOLE}```",
    "Windows line ends": f"```python\n{WHOLE}```".replace("\n", "\r\n"),
}


@pytest.mark.parametrize("form", COMPLETIONS)
def test_completions(form: str) -> None:
    assert result(COMPLETIONS[form], chat=False) == pytest.approx(3.14159, abs=1e-5)


@pytest.mark.parametrize("form", CHATS)
def test_chats(form: str) -> None:
    assert result(CHATS[form], chat=True) == pytest.approx(3.14159, abs=1e-5)


def test_a_completion_follows_its_prompt_to_the_letter() -> None:
    assert program("def f(x):\n    # one\n   ", " return x", "f") == "def f(x):\n    # one\n    return x"
    assert program(PROMPT, "    text = 'a `b` ```c'\n", "area") == f"{PROMPT}    text = 'a `b` ```c'\n"


@pytest.mark.parametrize(
    "prompt", [PROMPT, PROMPT.replace("    ", "  "), "import math\ndef area(r):", "import math\ndef area(r):\n\t'x'\n"]
)
def test_prompts_are_indented_in_many_ways(prompt: str) -> None:
    assert result(f"```python\n{FLUSH}```", chat=True, prompt=prompt) == pytest.approx(3.14159, abs=1e-5)
    compile(alone(prompt), "prompt", "exec")


def test_a_prompt_that_is_no_python_stands_for_nothing() -> None:
    assert alone("def f(:\n") == ""


def test_a_completion_stops_where_the_function_ends() -> None:
    """The paper's own list (section 2.2): what begins at the left margin is no part of the body."""
    until = load_yaml(str(TASKS_DIR / "humaneval.yaml"), resolve_func=False)["generation_kwargs"]["until"]
    assert set(until) >= {"\nclass", "\ndef", "\n#", "\nif", "\nprint"}
    assert not any(stop in BODY for stop in until)
