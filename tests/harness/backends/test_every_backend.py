"""What every registered engine owes, whatever it is; a new backend is tested without editing this file."""

import shlex
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from harness.backends import backend_class, backends
from harness.backends.command_line import final_command
from harness.backends.interface import Backend, BackendOptions, EngineState
from harness.errors import ConfigError, KVMarkError, Unsupported
from harness.model import Model, ModelShape
from harness.settings import Settings
from harness.strategy import KV_DTYPES, Strategy

SCENARIOS = Path(__file__).parents[3] / "scenarios"
STRATEGIES = {path.stem: Strategy(**yaml.safe_load(path.read_text())) for path in SCENARIOS.glob("strategy/*.yaml")}
BUDGET = 8192 * 23_040
SETTINGS = Settings(context_tokens=6400, max_num_seqs=4, kv_budget_bytes=BUDGET)

every_backend = pytest.mark.parametrize("name", backends())
every_strategy = pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES)


def supported(backend: Backend, strategy: Strategy, shape: ModelShape) -> bool:
    try:
        backend.check(strategy, shape, SETTINGS)
    except Unsupported as error:
        assert len(str(error)) > 20, "a reason is a sentence"
        return False
    return True


def test_the_engines_of_this_release_are_known() -> None:
    assert {"vllm", "llama-cpp"} <= set(backends())


def test_an_unknown_backend_is_named_with_those_that_exist() -> None:
    with pytest.raises(ConfigError, match=r"backend 'vlm' is unknown; known: .*llama-cpp.*vllm"):
        backend_class("vlm")


def test_strategies_are_where_they_are_looked_for() -> None:
    assert STRATEGIES["baseline"].is_16bit_baseline
    assert [name for name, strategy in STRATEGIES.items() if strategy.is_16bit_baseline] == ["baseline"]
    assert all(strategy.title for strategy in STRATEGIES.values())


@every_backend
def test_a_backend_has_its_options_file(name: str) -> None:
    text = (SCENARIOS / "backend" / f"{name}.yaml").read_text()
    assert text.startswith(f"# @package backend.{name}\n")
    assert BackendOptions(**yaml.safe_load(text)) == BackendOptions()


@every_backend
@every_strategy
def test_a_strategy_has_a_command_or_a_reason(name: str, strategy: Strategy, model: Model) -> None:
    backend = backend_class(name)()
    if not supported(backend, strategy, model.shape):
        with pytest.raises(Unsupported):
            backend.command("/env/bin/python", model, strategy, SETTINGS, 18_555, "unique-name")
        return
    command = backend.command("/env/bin/python", model, strategy, SETTINGS, 18_555, "unique-name")
    assert all(isinstance(word, str) and word for word in command.argv)
    assert all(isinstance(value, str) for value in command.env.values())
    assert command.argv[: len(backend.program("/env/bin/python"))] == backend.program("/env/bin/python")
    assert {"18555", "unique-name", "127.0.0.1"} <= set(command.argv)
    assert "None" not in command.argv and "True" not in command.argv


@every_backend
@every_strategy
def test_the_pool_never_takes_more_than_the_budget(name: str, strategy: Strategy, shape: ModelShape) -> None:
    backend = backend_class(name)()
    if not supported(backend, strategy, shape):
        return
    tokens = backend.capacity_tokens(strategy, shape, SETTINGS)
    assert tokens is not None and tokens >= SETTINGS.context_tokens
    taken = tokens * shape.kv_bytes_per_token(backend.kv_bits_per_value(strategy))
    assert 0.8 * BUDGET < taken <= BUDGET
    assert backend.capacity_tokens(strategy, shape, replace(SETTINGS, kv_budget_bytes=None)) is None


@every_backend
def test_strategies_differ_from_the_baseline_in_their_own_switches_only(name: str, model: Model) -> None:
    """What else changed would be measured as if it were the strategy."""
    backend = backend_class(name)()

    def words(strategy: Strategy) -> set[str]:
        return set(backend.command("py", model, strategy, SETTINGS, 18_555, "x").argv)

    baseline = words(Strategy())
    for strategy in STRATEGIES.values():
        if supported(backend, strategy, model.shape):
            changed = words(strategy) - baseline
            # format or switch, its value, and the pool's size in tokens
            assert len(changed) <= 4, changed
            assert changed or strategy.is_16bit_baseline


@every_backend
@pytest.mark.parametrize("dtype", KV_DTYPES)
def test_every_word_of_the_vocabulary_has_an_answer(name: str, dtype: str) -> None:
    try:
        bits = backend_class(name)().kv_bits_per_value(Strategy(kv_dtype=dtype))
    except Unsupported as error:
        assert f"kv_dtype={dtype}" in str(error)
    else:
        assert 4.0 <= bits <= 16.0
        assert (bits == 16.0) == (dtype == "16bit")


@every_backend
def test_a_budget_that_holds_no_request_says_what_is_needed(name: str, model: Model) -> None:
    backend = backend_class(name)()
    small = replace(SETTINGS, kv_budget_bytes=4096 * 23_040)
    with pytest.raises(Unsupported, match=r"context_tokens 6400: .* needs (\d+) bytes") as caught:
        backend.check(Strategy(), model.shape, small)
    needed = int(str(caught.value).split(" needs ")[1].split(" bytes")[0])
    backend.check(Strategy(), model.shape, replace(SETTINGS, kv_budget_bytes=needed))
    with pytest.raises(Unsupported):
        backend.check(Strategy(), model.shape, replace(SETTINGS, kv_budget_bytes=needed - 1))
    with pytest.raises(Unsupported):
        backend.command("py", model, Strategy(), small, 1, "x")


@every_backend
@pytest.mark.parametrize(
    ("key", "value"), [("swap_space_gib", 4.0), ("threads", 4096), ("block_size_tokens", 33), ("tensor_parallel", 4096)]
)
def test_a_setting_that_an_engine_lacks_is_refused_by_name(
    name: str, key: str, value: float, shape: ModelShape
) -> None:
    with pytest.raises(KVMarkError, match=key.split("_tokens")[0].split("_gib")[0]):
        backend_class(name)().check(Strategy(), shape, replace(SETTINGS, **{key: value}))


@every_backend
def test_the_users_program_arguments_and_variables(name: str, model: Model) -> None:
    options = BackendOptions(command="/opt/my engine/serve --quietly".replace("my engine", "engine"),
                             extra_args=["--more", "2"], env={"COLOUR": "green"})  # fmt: skip
    plain, mine = backend_class(name)(), backend_class(name)(options)
    where = ("/env/bin/python", model, Strategy(), SETTINGS, 18_555, "x")
    own, final = final_command(plain, *where), final_command(mine, *where)
    assert own == plain.command(*where)
    arguments = own.argv[len(plain.program("/env/bin/python")) :]
    assert final.argv == (*shlex.split(options.command or ""), *arguments, "--more", "2")
    assert final.env == {**own.env, "COLOUR": "green"}


@every_backend
def test_nothing_reported_is_none_and_never_zero(name: str, model: Model) -> None:
    backend = backend_class(name)()
    assert backend.state("") == EngineState()
    assert backend.state("some_other_metric 3\n# a comment\ngarbage\n") == EngineState()
    effect = backend.proof(model, Strategy(), SETTINGS, "", "")
    assert not effect.in_effect
    assert "nothing is proved" in effect.mismatches[0]
    assert effect.capacity_tokens is None and effect.pool_bytes is None and effect.kv_bytes_per_token is None


@every_backend
def test_no_answer_is_no_reset(name: str) -> None:
    outcome = backend_class(name)().reset("http://127.0.0.1:9", "x")
    assert not outcome.done
    assert outcome.evidence


@every_backend
def test_output_lengths_are_enforced(name: str) -> None:
    extras = backend_class(name)().request_extras(48)
    assert extras["max_tokens"] == 48
    assert extras["ignore_eos"] is True


@every_backend
def test_equal_threads_on_every_engine(name: str, model: Model) -> None:
    settings = replace(SETTINGS, cores=[0], threads=1)
    command = backend_class(name)().command("py", model, Strategy(), settings, 1, "x")
    told = {**command.env, **dict(zip(command.argv, command.argv[1:], strict=False))}
    assert told.get("VLLM_CPU_OMP_THREADS_BIND", "0") == "0"
    assert told.get("-t", "1") == "1" == told.get("-tb", "1")
    assert command.env.get("OMP_WAIT_POLICY") == "passive"
