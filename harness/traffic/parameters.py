"""A part of a load's YAML, checked against the dataclass that it configures: keys known, none missing, types right."""

import difflib
import math
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields
from functools import cache
from typing import Any, TypeVar

from harness.errors import ConfigError

T = TypeVar("T")

_CALLED = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", type(None): "null"}


def checked(cls: type[T], values: Mapping[str, Any], where: str) -> T:
    """An instance of a dataclass from a mapping.

    A field whose annotation is not a plain type (a length, say) is handed on as it is: its class reads it.

    Parameters
    ----------
    cls : type
        The dataclass.
    values : mapping
        Keys and values as YAML has them.
    where : str
        What to call the mapping, e.g. ``workload``.

    Raises
    ------
    ConfigError
        Naming key, value and what is allowed. One that the dataclass itself raises begins with its own key, and is
        prefixed with `where`.
    """
    known = {spec.name: spec for spec in fields(cls) if spec.init}  # type: ignore[arg-type]
    for key in values:
        if key not in known:
            raise ConfigError(f"{where}: key {unknown(str(key), known)}")
    annotations = _annotations(cls)  # type: ignore[arg-type]
    given: dict[str, Any] = {}
    for name, spec in known.items():
        if name in values:
            given[name] = _of_type(values[name], annotations[name], f"{where}.{name}")
        elif spec.default is MISSING and spec.default_factory is MISSING:
            raise ConfigError(f"{where}.{name}: is missing")
    try:
        return cls(**given)
    except ConfigError as error:
        raise ConfigError(f"{where}.{error}") from error


def unknown(name: str, allowed: Iterable[str]) -> str:
    """The complaint about a name that isn't one of those allowed, with the nearest one."""
    allowed = list(allowed)
    near = difflib.get_close_matches(name, allowed, n=1)
    hint = f" Did you mean '{near[0]}'?" if near else ""
    return f"'{name}' is unknown.{hint} Allowed: {', '.join(allowed)}"


def need(holds: bool, complaint: str) -> None:
    """Raise `ConfigError` with the complaint unless it holds."""
    if not holds:
        raise ConfigError(complaint)


@cache
def _annotations(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _of_type(value: Any, annotation: Any, where: str) -> Any:
    options = typing.get_args(annotation) if isinstance(annotation, types.UnionType) else (annotation,)
    if not set(options) <= set(_CALLED):
        return value
    if isinstance(value, bool):
        fits = bool in options
    elif isinstance(value, int) and float in options and int not in options:
        value, fits = float(value), True
    else:
        fits = isinstance(value, options)
    if not fits or (isinstance(value, float) and not math.isfinite(value)):
        called = " or ".join(_CALLED[option] for option in options)
        raise ConfigError(f"{where}: {value!r} must be {called}")
    return value
