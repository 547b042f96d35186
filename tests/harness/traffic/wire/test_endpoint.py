from pathlib import Path
from typing import Any

import h11
import pytest

from harness.errors import ConfigError
from harness.traffic.wire.endpoint import parse_endpoint


@pytest.mark.parametrize(
    ("url", "host", "port", "authority", "path"),
    [
        ("http://127.0.0.1:8000", "127.0.0.1", 8000, "127.0.0.1:8000", ""),
        ("http://engine", "engine", 80, "engine", ""),
        ("https://API.example.com/openai/", "api.example.com", 443, "API.example.com", "/openai"),
        ("http://[::1]:8000/a/b", "::1", 8000, "[::1]:8000", "/a/b"),
        ("http+unix://%2Frun%2FEngine.sock", "/run/Engine.sock", 0, "localhost", ""),
        ("http+unix://%2Frun%2Fengine.sock/base", "/run/engine.sock", 0, "localhost", "/base"),
    ],
)
def test_addresses(url: str, host: str, port: int, authority: str, path: str) -> None:
    endpoint = parse_endpoint(url)
    assert (endpoint.host, endpoint.port, endpoint.authority, endpoint.base_path) == (host, port, authority, path)


@pytest.mark.parametrize(
    "url",
    [
        "", "127.0.0.1:8000", "ftp://127.0.0.1", "http://", "http://:80", "http://a:b", "http://a:99999", "http://a/?q=1",
        "http://a/#x", "http://a/b c", "http://[::1", "http://ä", "http+unix://run%2Fsock", "http+unix://",
        "http+unix://%2F" + "x" * 120, "http://a/\r\nEvil: yes",
    ],
)  # fmt: skip
def test_addresses_that_are_none(url: str) -> None:
    with pytest.raises(ConfigError, match="base_url"):
        parse_endpoint(url)


@pytest.mark.parametrize("url", ["http://user:hunter2@host:80", "https://hunter2@host", "http://u:hunter2@[::1"])
def test_credentials_in_an_address_are_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_endpoint(url)
    assert "hunter2" not in str(error.value)


@pytest.mark.parametrize(
    "wrong",
    [
        {"api_key": "hunter2\r\nX: y"}, {"api_key": ""}, {"api_key": "hunter 2"}, {"headers": {"X y": "hunter2"}},
        {"headers": {"X": "hunter2\n"}}, {"headers": {"X": "hunter2€"}}, {"headers": {"Content-Length": "hunter2"}},
        {"headers": {"connection": "hunter2"}}, {"api_key": "k", "headers": {"authorization": "hunter2"}},
        {"ca_file": Path("/no/such/file")},
    ],
)  # fmt: skip
def test_what_no_header_may_hold_is_refused_and_not_repeated(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as error:
        parse_endpoint("http://a", **wrong)
    assert "hunter2" not in str(error.value)


@pytest.mark.parametrize("keep_alive", [True, False])
def test_a_head_is_what_a_server_reads(keep_alive: bool) -> None:
    endpoint = parse_endpoint("https://a:1/base/", api_key="sekrit", headers={"X-Team": "blau\xe9"})
    head = endpoint.head("/v1/completions", 5, "s1.2", keep_alive)
    server = h11.Connection(h11.SERVER)
    server.receive_data(head + b"12345")
    request = server.next_event()
    assert isinstance(request, h11.Request)
    assert (request.method, request.target, request.http_version) == (b"POST", b"/base/v1/completions", b"1.1")
    assert {name.decode(): value.decode("latin-1") for name, value in request.headers} == {
        "host": "a:1", "content-type": "application/json", "accept": "text/event-stream", "accept-encoding": "identity",
        "authorization": "Bearer sekrit", "x-team": "blau\xe9", "content-length": "5", "x-request-id": "s1.2",
        **({} if keep_alive else {"connection": "close"}),
    }  # fmt: skip
    assert "sekrit" not in repr(endpoint) and "blau" not in repr(endpoint)
