"""The registry of backends: every module of this package, and whatever registers the entry point `kvmark.backends`."""

import importlib
import pkgutil
from collections.abc import Callable
from functools import cache
from importlib.metadata import entry_points

from harness.backends.interface import Backend
from harness.errors import ConfigError

_REGISTRY: dict[str, type[Backend]] = {}


def backend(name: str) -> Callable[[type[Backend]], type[Backend]]:
    """Class decorator: make an engine known under `name`."""

    def register(cls: type[Backend]) -> type[Backend]:
        cls.name = name
        _REGISTRY[name] = cls
        return cls

    return register


@cache
def backends() -> dict[str, type[Backend]]:
    """All known engines by name, sorted."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    for entry in entry_points(group="kvmark.backends"):
        entry.load()
    return dict(sorted(_REGISTRY.items()))


def backend_class(name: str) -> type[Backend]:
    """The engine called `name`; raises `ConfigError` naming those that exist."""
    known = backends()
    if name not in known:
        raise ConfigError(f"backend '{name}' is unknown; known: {', '.join(known)}")
    return known[name]
