"""Small HTTP requests to servers on this host. Never through a proxy, whatever the environment says."""

import http.client
import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit


@dataclass(frozen=True)
class Answer:
    """A server's answer."""

    status: int
    text: str

    def json(self) -> Any:
        """The body as JSON; raises `ValueError` when it isn't."""
        return json.loads(self.text)


def request(method: str, url: str, body: object = None, timeout_s: float = 10.0) -> Answer:
    """One request with a JSON body (or none). Raises `OSError` when there's no whole answer in time."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=timeout_s)
    try:
        headers = {"Content-Type": "application/json"} if body is not None else {}
        path = parts.path + (f"?{parts.query}" if parts.query else "")
        connection.request(method, path or "/", None if body is None else json.dumps(body), headers)
        response = connection.getresponse()
        return Answer(response.status, response.read().decode(errors="replace"))
    except http.client.HTTPException as error:
        raise OSError(f"{method} {url}: {type(error).__name__} {error}") from error
    finally:
        connection.close()
