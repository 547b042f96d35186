"""The command line that is really run: an engine's own, with what a user added or replaced."""

import os
import shlex
from itertools import pairwise

from harness.backends.interface import Backend, Command
from harness.errors import ConfigError
from harness.model import Model
from harness.settings import Settings
from harness.strategy import Strategy


def final_command(
    backend: Backend, python: str, model: Model, strategy: Strategy, settings: Settings, port: int, served_name: str
) -> Command:
    """The engine's command with `backend.options` applied.

    `options.command` takes the place of the engine's own program (the arguments stay), `options.extra_args` are
    appended, and `options.env` is set on top of the engine's own variables.
    """
    own = backend.command(python, model, strategy, settings, port, served_name)
    program = backend.program(python)
    if own.argv[: len(program)] != program:
        raise ConfigError(f"backend {backend.name}: its command {own.argv} doesn't start with its program {program}")
    options = backend.options
    if options.command:
        program = tuple(os.path.expanduser(word) for word in shlex.split(options.command))
    ours = {flag for flag, value in pairwise(own.argv) if value in (str(port), served_name)}
    for argument in options.extra_args:
        if str(argument).partition("=")[0] in ours:
            raise ConfigError(
                f"backend.{backend.name}.extra_args: {argument} is set by KVMark; use the key port instead"
            )
    arguments = own.argv[len(backend.program(python)) :]
    return Command((*program, *arguments, *map(str, options.extra_args)), {**own.env, **options.env})
