"""Names for files from names of runs and deployments."""

import hashlib
import re

LONGEST = 90
"""Two of them and a suffix stay below the 255 bytes of a file's name."""


def slug(text: str) -> str:
    """Letters, digits, `.`, `_`, `+` and `-` only; one that is too long is cut and keeps a hash of the whole."""
    plain = re.sub(r"[^A-Za-z0-9._+-]+", "-", text)
    if len(plain) <= LONGEST:
        return plain
    return f"{plain[: LONGEST - 9]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
