"""The program that a model's answer stands for: prompt and answer joined, or the code that it put in a block."""

import ast
import contextlib
import re
import textwrap

_FENCE = re.compile(
    r"^(?P<indent>[ \t]*)(?P<fence>```+|~~~+)[ \t]*(?P<language>[\w+.-]*)[^\n]*\n"
    r"(?P<code>.*?)(?:^[ \t]*(?P=fence)[ \t]*$|\Z)",
    re.DOTALL | re.MULTILINE,
)
_BEGINS_CODE = re.compile(r"(?:async[ \t]+def|def|class|import)[ \t]|from[ \t]+\S+[ \t]+import\b|@\w")
_GOES_ON = re.compile(r"\s|[)\]}#]|(?:if|for|while|try|with|else|elif|except|finally)\b|\w+[ \t]*(?::[^=\n]*)?=")


def program(prompt: str, answer: str, entry_point: str, *, chat: bool = False) -> str:
    """Prompt and answer as one program.

    Parameters
    ----------
    prompt : str
        The beginning of the function; it stays in front, for what it imports and defines.
    answer : str
        The rest of the function, as a completion has it; or a chat's, with the code in a block between sentences, of
        which the one that defines the function counts; or the function written out again.
    entry_point : str
        Name of the function.
    chat : bool
        Whether it was asked as a chat.
    """
    answer = answer.rpartition("</think>")[2]
    in_block = _first_line(answer).lstrip().startswith("```")
    if not chat and not in_block and not _defines(answer, entry_point):
        return prompt + answer.partition("\n```")[0]
    code = _code(answer, entry_point)
    if _defines(code, entry_point):
        return f"{alone(prompt)}\n\n\n{code}"
    return f"{prompt.rstrip()}\n{_body(code, _indent(prompt))}"


def alone(prompt: str) -> str:
    """The prompt as a program: with a body that does nothing, where it has none; empty where it is no Python."""
    for text in (prompt, f"{prompt.rstrip()}\n{_indent(prompt)}pass\n"):
        with contextlib.suppress(SyntaxError, ValueError, RecursionError, MemoryError):
            ast.parse(text)
            return text
    return ""


def _code(answer: str, entry_point: str) -> str:
    """The answer's code; the answer itself where no block and no whole function stands out."""
    blocks = [
        textwrap.dedent(match["code"]) if match["indent"] else match["code"]
        for match in _FENCE.finditer(answer)
        if match["language"].lower() in ("", "python", "py", "python3")
    ]
    if blocks:
        return next((block for block in blocks if _defines(block, entry_point)), blocks[0])
    if not _defines(answer, entry_point):
        return answer
    lines = answer.splitlines(keepends=True)
    start = next(i for i, line in enumerate(lines) if _BEGINS_CODE.match(line))
    after = range(start + 1, len(lines))
    end = next((i for i in after if not (_BEGINS_CODE.match(lines[i]) or _GOES_ON.match(lines[i]))), len(lines))
    return "".join(lines[start:end])


def _defines(code: str, entry_point: str) -> bool:
    return re.search(rf"^(?:async[ \t]+)?def[ \t]+{re.escape(entry_point)}\b", code, re.MULTILINE) is not None


def _body(code: str, indent: str) -> str:
    """The lines of a function's body, which a chat may tell flush left, or only the first of them."""
    code = textwrap.dedent(code)
    first = _first_line(code)
    others = [line for line in code.split("\n") if line.strip()][1:]
    if others and all(line[0].isspace() for line in others) and not first.rstrip().endswith(":"):
        return code.replace(first, indent + first, 1)
    return textwrap.indent(code, indent)


def _indent(prompt: str) -> str:
    """How the body of the prompt's last function is indented."""
    last = next((line for line in reversed(prompt.splitlines()) if line.strip()), "")
    return last[: len(last) - len(last.lstrip())] + ("    " if last.rstrip().endswith(":") else "")


def _first_line(text: str) -> str:
    return next((line for line in text.split("\n") if line.strip()), "")
