"""What in a log tells a person why a program failed."""

import re
from pathlib import Path

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_PREFIX = re.compile(r"^\((?:APIServer|EngineCore|Worker)\S*(?: pid=\d+)?\)\s*")
_RAISED = re.compile(r"^(?:[\w.]+\.)?\w*(?:Error|Exception|Interrupt|Exit)\b\s*(?::|$)")
_COMPLAINT = re.compile(
    r"\bERROR\b|\berror\b|\bE \s*\w+:|fatal|failed|abort|GGML_ASSERT|out of memory|unrecognized argument|"
    r"invalid argument|No such file|not found|Killed|Segmentation fault|cannot|can't",
    re.IGNORECASE,
)
_NOISE = re.compile(
    r"^\s*$|it/s\]|s/it\]|\bINFO\b|\bWARNING\b|Warning:|^\s+File \"|^\s+\^+\s*$|^\s*~+\^|"
    r"Traceback \(most recent|During handling of|The above exception|See root cause above",
)


def plain(line: str) -> str:
    """A log line without colours and process prefix."""
    return _PREFIX.sub("", _COLOUR.sub("", line)).rstrip()


def useful_lines(log_text: str, limit: int = 12) -> list[str]:
    """The last lines that say what went wrong, each once, in order; the plain tail where none does.

    Parameters
    ----------
    log_text : str
        The log.
    limit : int
        Most lines to return.
    """
    lines = [plain(line) for line in log_text.splitlines()]
    # an engine may log a traceback line by line behind a timestamp and file name: `ERROR 11-29 14:00:00 [core.py:1] x`
    bodies = [re.sub(r"^ERROR \S+ \S+ \[[^\]]*\] ?", "", line) for line in lines]
    raised = [body for body in bodies if _RAISED.match(body)]
    complaints = [body for body in bodies if not _NOISE.search(body) and _COMPLAINT.search(body)]
    chosen = raised[-limit // 2 :] + complaints[-limit // 2 :]
    if not chosen:
        quiet = [line for line in lines if not _NOISE.search(line)]
        chosen = (quiet or [line for line in lines if line])[-limit:]
    wanted = set(chosen)
    ordered = [body for body in dict.fromkeys(bodies) if body in wanted]
    return [line[:400] for line in ordered[-limit:]]


def log_tail(path: Path, lines: int = 15) -> str:
    """Last lines of a log file, for error texts."""
    text = path.read_text(errors="replace") if path.exists() else ""
    return "\n".join(text.splitlines()[-lines:])
