"""What stands in the way of comparing two runs is named with both values; what one compares on purpose is allowed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.comparability import differences, engine_changed
from bench.difference import ACCURACY, ALL, MEMORY, SPEED, Difference, voiding
from bench.sides import Named, named
from harness.errors import ConfigError
from tests.bench.run_folder import effect, forced_decode
from tests.bench.runs import BASE, FP8, LLAMA
from tests.bench.two_runs import Launches, alter, pair, run

Alteration = Callable[[Path], Named]


def manifest(*path: str, value: Any) -> Alteration:
    return lambda root: alter(run(root), "manifest.json", *path, value=value)


def planned(*path: str, value: Any) -> Alteration:
    return lambda root: alter(run(root), "plan.json", *path, value=value)


def launched(deployments: tuple[str, ...] = (BASE, FP8), **values: Any) -> Alteration:
    """Every launch of some deployments, its facts replaced."""

    def change(launches: Launches) -> None:
        for (_, deployment, _), spec in launches.items():
            if deployment in deployments:
                for key, value in values.items():
                    setattr(spec, key, value)

    return lambda root: run(root, launches=change)


def found(tmp_path: Path, altered: Alteration, deployment: str = FP8) -> list[Difference]:
    return differences(pair(run(tmp_path / "a"), altered(tmp_path / "b"), deployment))


def test_a_run_differs_in_nothing_from_itself(tmp_path: Path) -> None:
    assert found(tmp_path, run) == []


@pytest.mark.parametrize(
    ("altered", "words", "voids"),
    [
        (manifest("models", "tiny", "content_sha256", value="0" * 64), "content_sha256", ALL),
        (manifest("models", value={}), "content_sha256", ALL),
        (planned("settings", "tiny", value={"context_tokens": 4096}), "context length", ALL),
        (planned("kv_budget_bytes", "tiny", value=1), "KV budget", (SPEED, MEMORY)),
        (manifest("hardware", "cpu", value="another CPU"), "hardware: cpu", (SPEED,)),
        (manifest("hardware", "hostname", value="node2"), "hardware: hostname", (SPEED,)),
        (manifest("hardware", "gpus", value=[{"name": "G"}]), "hardware: gpus", (SPEED,)),
        (planned("loads", "chat", "arrival", "concurrency", value=9), "load chat: arrival: concurrency", (SPEED,)),
        (planned("loads", "chat", "requests", value=13), "load chat: requests", (SPEED,)),
        (launched(schedule_sha256="9" * 64), "traffic of block 0 (schedule_sha256)", (SPEED,)),
        (launched(cache_state="warm"), "prefix cache at the start", (SPEED,)),
        (launched(client={"cpu_share_max": 0.97}), "client-bound", (SPEED,)),
        (launched(cell_state="failed", cell_reason="it died"), "it died", (SPEED,)),
        (launched(items_sha256="9" * 64), "questions (items_sha256)", (ACCURACY,)),
        (launched(mode="loglikelihood"), "way of asking (mode)", (ACCURACY,)),
        (manifest("data", "retrieval", value="8" * 64), "data: retrieval", (ACCURACY,)),
        (planned("accuracy", value={}), "task retrieval: state", (ACCURACY,)),
        (planned("settings", "tiny", value={"max_num_seqs": 4}), "engine setting (max_num_seqs)", (SPEED,)),
        (launched((FP8,), output_check=forced_decode(nll=9.4, top1=[9] * 20)), "output broken", (SPEED,)),
        (launched((FP8,), effect=effect("bfloat16", 1.0, ["kv dtype"])), "not in effect", ALL),
        (lambda root: alter(run(root, blocks=1), "blocks/0/block.json", "status", value="running"), "0 of 1", ALL),
    ],
)
def test_what_voids_a_comparison_is_named_with_both_values(
    altered: Alteration, words: str, voids: tuple[str, ...], tmp_path: Path
) -> None:
    named_so = [d for d in found(tmp_path, altered) if words in d.text and d.voids]
    assert named_so, f"{words} is not named"
    assert named_so[0].voids == voids
    assert named_so[0].a != named_so[0].b


@pytest.mark.parametrize(
    ("altered", "words"),
    [
        (manifest("engines", "vllm", "version", value="0.33.0"), "engine: version"),
        (manifest("engines", "vllm", "packages_sha256", value="0" * 64), "engine: packages_sha256"),
        (manifest("identity", "code_sha256", value="0" * 64), "code_sha256"),
        (manifest("seed", value=2), "seed"),
        (manifest("status", value="incomplete"), "complete blocks"),
        (planned("accuracy", "retrieval", "margin_pp", value=5.0), "margin_pp"),
    ],
)
def test_what_a_user_may_compare_is_named_and_allowed(altered: Alteration, words: str, tmp_path: Path) -> None:
    differing = found(tmp_path, altered)
    assert any(words in d.text for d in differing)
    assert not any(d.voids for d in differing)


def test_questions_under_load_hang_on_the_kv_budget(tmp_path: Path) -> None:
    def under_load(launches: Launches) -> None:
        for spec in launches.values():
            spec.task = {"under_load_sha256": "5" * 64}

    b = alter(run(tmp_path / "b", launches=under_load), "plan.json", "kv_budget_bytes", "tiny", value=1)
    (found,) = voiding(differences(pair(run(tmp_path / "a", launches=under_load), b, FP8)), ACCURACY, "retrieval")
    assert found.text == "task retrieval, under load: KV budget: 184320000 against 1"


def test_another_engine_is_no_drift_control(tmp_path: Path) -> None:
    version = manifest("engines", "vllm", "version", value="0.33.0")
    assert engine_changed(found(tmp_path, version, BASE))
    assert not engine_changed(found(tmp_path / "again", version, LLAMA))


def test_a_block_of_other_traffic_is_left_out_and_the_rest_compared(tmp_path: Path) -> None:
    def change(launches: Launches) -> None:
        launches[1, FP8, 1].schedule_sha256 = "9" * 64

    held = pair(run(tmp_path / "a"), run(tmp_path / "b", launches=change), FP8)
    assert held.shared_blocks("chat") == [0, 2]
    (one,) = differences(held)
    assert "block 1" in one.what
    assert one.voids == ()


def test_options_of_the_engine_are_named_and_a_client_that_reconnects_voids_speed(tmp_path: Path) -> None:
    runs = run(tmp_path / "a"), run(tmp_path / "b")
    for one, keep_alive in zip(runs, ("true", "false"), strict=True):
        (one.path / "config.yaml").write_text(
            f"scenario: {{client: {{keep_alive: {keep_alive}, processes: 1}}}}\n"
            f"backend: {{vllm: {{extra_args: [--flag-{keep_alive}]}}}}\n"
        )
    told = {d.what: d for d in differences(pair(*runs, FP8))}
    assert told["load client: keep_alive"].voids == (SPEED,)
    assert told["engine option: extra_args"].voids == ()
    assert (told["engine option: extra_args"].a, told["engine option: extra_args"].b) == (
        ["--flag-true"],
        ["--flag-false"],
    )


def test_what_is_named_must_be_a_run_and_a_deployment_of_it(tmp_path: Path) -> None:
    one = run(tmp_path)
    assert named(f"{one.path}:{FP8}", "a") == Named(one.path, FP8)
    with pytest.raises(ConfigError, match=r"a=nothing is no run.*manifest\.json"):
        named("nothing", "a")
    with pytest.raises(ConfigError, match="is no run"):
        named(f"{one.path}:{FP8}", "run", whole=True)


def test_an_output_in_doubt_is_said_beside_what_is_compared() -> None:
    example = Named(Path(__file__).resolve().parents[2] / "results" / "example")
    engine = "vllm+smollm2-135m+"
    (said,) = [
        d for d in differences(pair(example, example, f"{engine}baseline", f"{engine}kv-fp8")) if "check" in d.what
    ]
    assert str(said.b).startswith("in doubt (") and not said.voids
