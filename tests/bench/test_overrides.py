"""A user's overrides arrive in one form; what would tear blocks apart is folded or refused with the right spelling."""

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from bench.config import AXES
from bench.overrides import name_the_backend, name_the_tasks, normalise, quoted, scenario_name, split_nameless
from harness.errors import ConfigError


@pytest.mark.parametrize("axis", AXES)
def test_a_comma_sweep_over_an_axis_becomes_a_list(axis: str) -> None:
    assert normalise([f"{axis}=a,b-c"]) == [f"{axis}=[a,b-c]"]


@pytest.mark.parametrize("axis", AXES)
def test_one_value_of_an_axis_becomes_a_list(axis: str) -> None:
    assert normalise([f"{axis}=a"]) == [f"{axis}=[a]"]
    assert normalise([f"{axis}=[a,b]"]) == [f"{axis}=[a,b]"]


@pytest.mark.parametrize("text", ["seed=1,2", "scenario=smoke,long-context", "scenario.blocks=range(1,3)"])
def test_any_other_sweep_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="tear blocks apart"):
        normalise([text])


def test_a_value_with_a_comma_inside_quotes_or_lists_is_no_sweep() -> None:
    texts = ["backend.vllm.extra_args=[--a,--b]", "results_dir='x,y'"]
    assert normalise(texts) == texts


def test_an_override_that_is_none_is_an_error_not_a_crash() -> None:
    with pytest.raises(ConfigError, match="override"):
        normalise(["backend=[vllm"])


def test_a_backend_key_without_a_name_means_the_only_backend() -> None:
    nameless, others = split_nameless(
        ["backend.python=/usr/bin/python3", "scenario=smoke", "backend.vllm.port=1"], "backend"
    )
    assert nameless == ["backend.python=/usr/bin/python3"]
    assert others == ["scenario=smoke", "backend.vllm.port=1"]
    assert name_the_backend(nameless, ["llama-cpp"]) == ["backend.llama-cpp.python=/usr/bin/python3"]


def test_a_backend_key_without_a_name_is_refused_with_several_backends() -> None:
    with pytest.raises(ConfigError, match=r"backend\.vllm\.port, backend\.llama-cpp\.port"):
        name_the_backend(["backend.port=1"], ["vllm", "llama-cpp"])


def test_the_last_scenario_named_wins() -> None:
    assert scenario_name(["scenario=smoke", "seed=1", "scenario=odcc"]) == "odcc"
    assert scenario_name([]) == "smoke"


def test_a_new_variable_for_a_backend_needs_no_plus() -> None:
    assert normalise(["backend.vllm.env.NAME=x"]) == ["+backend.vllm.env.NAME=x"]
    assert normalise(["+backend.vllm.env.NAME=x"]) == ["+backend.vllm.env.NAME=x"]


@pytest.mark.parametrize("text", ["run_dir=/x", "block=3", "scenario_name=x"])
def test_keys_that_carry_a_run_to_its_jobs_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="set by KVMark itself"):
        normalise([text])


@pytest.mark.parametrize("path", ["/plain", "/it's", "/a b", "/a=b,c", '/say "x"', "/back\\slash", "/end\\", "/\\'"])
def test_a_quoted_path_is_read_back_as_it_is(path: str) -> None:
    (parsed,) = OverridesParser.create().parse_overrides([f"run_dir={quoted(path)}"])
    assert str(parsed.value()) == path


def test_an_accuracy_key_without_a_name_means_every_selected_task_and_a_folder_those_with_data() -> None:
    given = ["accuracy.num_concurrent=4", "accuracy.data_dir=/data", "accuracy.mmlu.limit=3", "accuracy=[mmlu]"]
    nameless, others = split_nameless(given, "accuracy")
    assert others == given[2:]
    assert name_the_tasks(nameless, {"mmlu": "mmlu", "needles": "retrieval"}) == [
        "accuracy.mmlu.num_concurrent=4",
        "accuracy.needles.num_concurrent=4",
        "accuracy.mmlu.data_dir=/data",
    ]


@pytest.mark.parametrize("kinds", [{}, {"needles": "retrieval"}])
def test_a_data_folder_that_no_selected_task_reads_is_refused(kinds: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"accuracy.data_dir=/data.*accuracy=\[name"):
        name_the_tasks(["accuracy.data_dir=/data"], kinds)


def test_an_argument_of_a_chat_template_is_a_new_key() -> None:
    text = "accuracy.mine.chat_template_arguments.enable_thinking=false"
    assert normalise([text]) == [f"+{text}"]
