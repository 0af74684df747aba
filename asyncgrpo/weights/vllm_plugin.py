"""Entry point by which vLLM learns of our weight-transfer backend; runs in every vLLM process, perhaps twice."""

BACKEND = "asyncgrpo_shared_memory"


def register() -> None:
    from vllm.distributed.weight_transfer import WeightTransferEngineFactory

    if BACKEND not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(BACKEND, "asyncgrpo.weights.vllm_backend", "SharedMemoryEngine")
