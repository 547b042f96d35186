"""Engines' metrics texts are read as they really look."""

from harness.prometheus import samples, totals

TEXT = """\
# HELP vllm:kv_cache_usage_perc KV-cache usage. 1 means 100 percent usage.
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="a \\"b\\", {c}"} 0.746
vllm:prefix_cache_hits_total{engine="0"} 1.0e+03
vllm:prefix_cache_hits_total{engine="1"} 24
llamacpp:requests_processing 2
stamped 3 1795963303000
no_value
not_a_number x
"""


def test_names_labels_and_values() -> None:
    first, *_ = list(samples(TEXT))
    assert first.name == "vllm:kv_cache_usage_perc"
    assert first.labels == {"engine": "0", "model_name": 'a "b", {c}'}
    assert first.value == 0.746


def test_totals_sum_over_labels_and_skip_what_is_no_sample() -> None:
    assert totals(TEXT) == {
        "vllm:kv_cache_usage_perc": 0.746,
        "vllm:prefix_cache_hits_total": 1024.0,
        "llamacpp:requests_processing": 2.0,
        "stamped": 3.0,
    }
    assert totals("") == {}
