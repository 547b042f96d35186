"""Texts of real servers, cut to the telling lines."""

from pathlib import Path


def recorded(name: str) -> tuple[str, str]:
    """Log and metrics text."""
    folder = Path(__file__).parent / "recorded"
    return (folder / f"{name}.log").read_text(), (folder / f"{name}.metrics").read_text()
