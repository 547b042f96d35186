"""`python -m bench jmeter load=NAME model=NAME out=FOLDER`: one load as a plan for Apache JMeter, nothing launched."""

import tempfile
from collections.abc import Callable
from pathlib import Path

from bench.config import Config
from harness.backends import backend_class
from harness.cache import Say
from harness.errors import ConfigError
from harness.models import prepare
from harness.traffic.jmeter import Exported, export_plan
from harness.traffic.schedule import build_schedule

Resolve = Callable[[list[str]], tuple[list[str], Config]]


def export(arguments: list[str], resolve: Resolve, say: Say) -> Exported:
    """Write the plan that `arguments` name.

    Parameters
    ----------
    arguments : list of str
        ``load=``, ``model=`` and ``out=``; further overrides as for a run. ``backend=`` says how output lengths are
        enforced in the bodies, ``served_name=`` the name that the server answers to (the model's, if none is given).
    resolve : callable
        Arguments → configuration.
    say : callable
        Told of progress.

    Raises
    ------
    ConfigError
        Naming the key that is wrong or missing.
    """
    own = dict(argument.split("=", 1) for argument in arguments if argument.split("=", 1)[0] in ("out", "served_name"))
    rest = [argument for argument in arguments if argument.split("=", 1)[0] not in own]
    if not own.get("out"):
        raise ConfigError("out: say which folder the plan is to be written to, e.g. out=jmeter")
    _, config = resolve(rest)
    for axis in ("load", "model", "backend"):
        names = list(getattr(config, axis))
        if len(names) != 1 and not (axis == "backend" and names):
            raise ConfigError(f"{axis}: a plan is of one; write {axis}=NAME, one of those selected: {', '.join(names)}")
    (load_name, load), (model_name, spec) = next(iter(config.load.items())), next(iter(config.model.items()))
    backend_name, options = next(iter(config.backend.items()))
    model = prepare(model_name, spec, say)
    with tempfile.TemporaryDirectory(prefix="kvmark-jmeter-") as folder:
        schedule = Path(folder) / "schedule.jsonl"
        facts = build_schedule(
            load,
            model=model,
            served_name=own.get("served_name") or model_name,
            request_extras=backend_class(backend_name)(options).request_extras,
            context_tokens=config.scenario.settings.context_tokens,
            seed=config.seed,
            path=schedule,
        )
        return export_plan(schedule, Path(own["out"]), load_name, facts.sha256)
