"""Locust as it comes: each user asks for an answer of a few tokens and reads it whole, until enough have been asked."""

import json
from argparse import ArgumentParser
from typing import Any

import gevent
from locust import FastHttpUser, constant, events, task
from locust.env import Environment
from locust.exception import StopUser

from harness.perf.peers import EXTRA_BODY

LEFT = {"requests": 0, "users": 0}


@events.init_command_line_parser.add_listener  # type: ignore[untyped-decorator]
def add_arguments(parser: ArgumentParser) -> None:
    """Our options beside Locust's."""
    for name in ("requests", "prompt-tokens", "output-tokens"):
        parser.add_argument(f"--{name}", type=int, required=True)


@events.init.add_listener  # type: ignore[untyped-decorator]
def on_init(environment: Environment, **_: Any) -> None:
    """How many to ask, and by how many users."""
    options = environment.parsed_options
    assert options is not None
    LEFT.update(requests=options.requests, users=options.num_users)


class Asker(FastHttpUser):
    """One connection."""

    wait_time = constant(0)

    def on_start(self) -> None:
        """Make the body once."""
        options = self.environment.parsed_options
        usage = {"include_usage": True}
        self.body = json.dumps(
            {
                "model": "paced",
                "prompt": [1000 + number for number in range(options.prompt_tokens)],
                "max_tokens": options.output_tokens,
                "stream": True,
                "stream_options": usage,
                **EXTRA_BODY,
            }
        )

    @task
    def ask(self) -> None:
        """One request."""
        if LEFT["requests"] <= 0:
            LEFT["users"] -= 1
            if LEFT["users"] == 0:
                gevent.spawn(self.environment.runner.quit)
            raise StopUser
        LEFT["requests"] -= 1
        self.client.post("/v1/completions", data=self.body, headers={"Content-Type": "application/json"})
