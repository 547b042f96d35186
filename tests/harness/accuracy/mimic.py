"""The server of `mimic_server.py`, as the tests see it."""

from dataclasses import dataclass
from typing import Any

from harness import local_http


@dataclass
class MimicServer:
    base_url: str

    def url(self, faults: str = "sound") -> str:
        return f"{self.base_url}/{faults}"

    def seen(self, faults: str = "sound") -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = local_http.request("GET", f"{self.url(faults)}/seen").json()
        return found
