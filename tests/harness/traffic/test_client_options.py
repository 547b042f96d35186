from typing import Any

import pytest

from harness.errors import ConfigError
from harness.traffic.client_options import ClientOptions


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"processes": 0}, "client.processes: 0 must be between 1 and"),
        ({"workers": -1}, "client.workers: -1 must be between 0 and"),
        ({"bind_port": 70000}, "client.bind_port: 70000"),
        ({"web_port": 0}, "client.web_port: 0"),
        ({"workers_wait_s": 0.0}, "client.workers_wait_s"),
        ({"bind_host": ""}, "client.bind_host"),
        ({"transport": "fast"}, "client.transport: 'fast' is unknown; allowed: auto, pure, compiled"),
        ({"cores": []}, "client.cores"),
        ({"cores": [-1]}, "client.cores"),
        ({"ca_file": "/nowhere.pem"}, "client.ca_file: there is no file /nowhere.pem"),
        ({"processes": 2, "workers": 2}, "client.processes: 2 with client.workers: 2"),
    ],
)
def test_a_bad_value_is_named_with_what_is_allowed(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ClientOptions(**values)
    assert words in str(caught.value)


def test_whoever_sends_is_counted() -> None:
    assert (ClientOptions().senders, ClientOptions(processes=3).senders, ClientOptions(workers=4).senders) == (1, 3, 4)
