"""Kinds of accuracy tasks, one module each: `retrieval.py` is the kind `retrieval`, `key_value.py` is `key-value`."""

import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache

from harness.accuracy.kinds.interface import Kind


@cache
def kinds() -> Mapping[str, Kind]:
    """Every kind by name."""
    found = {}
    for module in sorted(pkgutil.iter_modules(__path__), key=lambda one: one.name):
        kind = getattr(importlib.import_module(f"{__name__}.{module.name}"), "KIND", None)
        if isinstance(kind, Kind):
            found[module.name.replace("_", "-")] = kind
    return found
