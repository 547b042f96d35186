"""Arguments of the commands that take folders: `compare A B`, or the same as `compare a=A b=B`, and options."""

import math
from collections.abc import Mapping, Sequence

from harness.errors import ConfigError


def options(
    command: str, arguments: Sequence[str], required: Sequence[str], optional: Sequence[str], open_key: str = ""
) -> dict[str, str]:
    """Values by key; what has no key fills `required` in turn. Raises `ConfigError`.

    Parameters
    ----------
    required, optional : sequence of str
        The keys.
    open_key : str
        Beginning of further keys that are taken as they are (``hydra``).
    """
    found: dict[str, str] = {}
    for argument in arguments:
        key, equals, value = argument.partition("=")
        known = key in (*required, *optional) or (bool(open_key) and key.lstrip("+~").startswith(open_key))
        if not equals or (not known and "/" in key):  # a path may have a sign of equality
            key, value = next((name for name in required if name not in found), ""), argument
            known = bool(key)
        if not known:
            wrong = f"unknown key {key}" if key else f"one argument too many: {argument}"
            raise ConfigError(f"{command}: {wrong}; allowed: {', '.join([*required, *optional])}")
        if key in found:
            raise ConfigError(f"{command}: {key} is given twice")
        found[key] = value
    if missing := [name for name in required if not found.get(name)]:
        raise ConfigError(f"{command}: {' and '.join(missing)} missing; write {command} {' '.join(required).upper()}")
    return found


def positive(given: Mapping[str, str], key: str, default: float) -> float:
    """A number > 0; raises `ConfigError`."""
    if key not in given:
        return default
    try:
        value = float(given[key])
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise ConfigError(f"{key}={given[key]} must be a number > 0")
    return value
