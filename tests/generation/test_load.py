import pytest

from asyncgrpo.generation.load import EngineLoad, parse_load

TEXT = """# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="policy"} 12.0
vllm:num_requests_running{engine="1",model_name="policy"} 3.0
vllm:num_requests_waiting{engine="0",model_name="policy"} 2.0
vllm:num_requests_waiting{engine="1",model_name="policy"} 0.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="policy",reason="capacity"} 2.0
vllm:kv_cache_usage_perc{engine="0",model_name="policy"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="policy"} 0.75
vllm:num_preemptions_total{engine="0",model_name="policy"} 7.0
vllm:num_preemptions_created{engine="0",model_name="policy"} 1.79e+09
vllm:generation_tokens_total 1.5e+06
"""


def test_ranks_are_summed_and_the_fullest_cache_counts() -> None:
    assert parse_load(TEXT) == EngineLoad(
        running=15, waiting=2, kv_usage=0.75, preemptions=7, generated_tokens=1_500_000
    )


def test_a_missing_metric_is_named() -> None:
    with pytest.raises(ValueError, match="no vllm:kv_cache_usage_perc; are its stats disabled"):
        parse_load(TEXT.replace("kv_cache_usage", "gpu_cache_usage"))
