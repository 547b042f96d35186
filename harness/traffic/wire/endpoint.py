"""Where requests go, and the head of each: addresses, credentials, headers."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

from harness.errors import ConfigError

PORTS = {"http": 80, "https": 443, "http+unix": 0}
HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
HEADER_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
OURS = {"host", "content-type", "content-length", "transfer-encoding", "accept", "accept-encoding", "connection",
        "x-request-id"}  # fmt: skip
FORMS = "http://host:port, https://host:port or http+unix://%2Frun%2Fengine.sock, each with an optional path"


@dataclass(frozen=True)
class Endpoint:
    """One server, as a client reaches it. Made by `parse_endpoint`.

    Attributes
    ----------
    scheme : str
        `http`, `https` or `http+unix`.
    host : str
        Name or address to connect to; the socket's path for `http+unix`.
    port : int
        TCP port; 0 for `http+unix`.
    authority : str
        What the `Host` header says.
    base_path : str
        Path in front of every request's, without a slash at its end.
    ca_file : Path or None
        Certificates to trust (PEM) instead of the system's.
    verify : bool
        Check the server's certificate and name.
    api_key : str or None
        Sent as `Authorization: Bearer`. Left out of `repr`, as are the extra headers' values.
    headers : dict
        Extra headers of every request.
    """

    scheme: str
    host: str
    port: int
    authority: str
    base_path: str = ""
    ca_file: Path | None = None
    verify: bool = True
    api_key: str | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)

    def head(self, path: str, content_length: int, request_id: str, keep_alive: bool = True) -> bytes:
        """Request line and headers of a POST of JSON whose answer is a stream; `request_id` goes as `X-Request-Id`."""
        connection = "" if keep_alive else "Connection: close\r\n"
        return (
            f"POST {self.base_path}{path} {self._constant}Content-Length: {content_length}\r\n"
            f"X-Request-Id: {request_id}\r\n{connection}\r\n"
        ).encode("latin-1")

    @cached_property
    def _constant(self) -> str:
        """The version and the headers that never change."""
        headers = {
            "Host": self.authority,
            "Content-Type": "application/json",
            "Accept": "text/event-stream",
            "Accept-Encoding": "identity",
            **({} if self.api_key is None else {"Authorization": f"Bearer {self.api_key}"}),
            **self.headers,
        }
        return "HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in headers.items())


def parse_endpoint(
    url: str,
    *,
    api_key: str | None = None,
    ca_file: Path | None = None,
    verify: bool = True,
    headers: Mapping[str, str] | None = None,
) -> Endpoint:
    """An `Endpoint` out of its address.

    Raises
    ------
    ConfigError
        When the address, the key or a header can't be used; the text never holds a credential.
    """
    if "@" in url.partition("://")[2].partition("/")[0]:
        raise ConfigError("base_url: a user or password in the address is not supported; give an API key")
    parts, port = _split(url)
    host = unquote(parts.netloc) if parts.scheme == "http+unix" else parts.hostname
    wrong_path = parts.query or parts.fragment or not re.fullmatch(r"[\x21-\x7e]*", parts.path)
    if parts.scheme not in PORTS or not host or wrong_path:
        raise ConfigError(f"base_url: '{url}' is not of the form {FORMS}")
    if parts.scheme == "http+unix":
        if not host.startswith("/"):
            raise ConfigError(f"base_url: '{url}': the socket's path must be absolute, with / written as %2F")
        if len(host.encode()) > 107:  # sun_path of unix(7)
            raise ConfigError(f"base_url: the socket's path is longer than the 107 bytes that Linux allows: {host}")
    if ca_file is not None and not ca_file.is_file():
        raise ConfigError(f"ca_file: there is no file {ca_file}")
    if api_key is not None and not re.fullmatch(r"[\x21-\x7e]+", api_key):
        raise ConfigError("api_key: empty, or with a character that no header may hold")
    for name, value in (headers or {}).items():
        if not HEADER_NAME.fullmatch(name) or not HEADER_VALUE.fullmatch(value):
            raise ConfigError(f"headers: '{name}' has a character that no header may hold")
        if name.lower() in OURS or (name.lower() == "authorization" and api_key is not None):
            raise ConfigError(f"headers: '{name}' is set by the client itself")
    return Endpoint(
        scheme=parts.scheme,
        host=host,
        port=port,
        authority="localhost" if parts.scheme == "http+unix" else parts.netloc,
        base_path=parts.path.rstrip("/"),
        ca_file=ca_file,
        verify=verify,
        api_key=api_key,
        headers=dict(headers or {}),
    )


def _split(url: str) -> tuple[SplitResult, int]:
    try:
        parts = urlsplit(url)
        port = 0 if parts.scheme == "http+unix" else parts.port
        parts.netloc.encode("ascii")
    except ValueError as error:  # a UnicodeError is one
        raise ConfigError(f"base_url: '{url}' is not of the form {FORMS}") from error
    return parts, PORTS.get(parts.scheme, 0) if port is None else port
