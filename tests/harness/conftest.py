import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # helpers that lie beside the tests


@pytest.fixture(scope="session")
def find_links(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of wheels that stands for the package index."""
    return tmp_path_factory.mktemp("wheels")


@pytest.fixture
def only_local_wheels(monkeypatch: pytest.MonkeyPatch, find_links: Path) -> Path:
    """Let pip see nothing but the wheels of `find_links`."""
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(find_links))
    monkeypatch.delenv("PIP_EXTRA_INDEX_URL", raising=False)
    return find_links
