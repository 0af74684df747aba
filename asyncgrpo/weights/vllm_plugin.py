"""Entry point by which vLLM learns of our weight-transfer backend; runs in every vLLM process, perhaps twice."""

import time

BACKEND = "asyncgrpo_shared_memory"
CPU_WAIT_SECONDS = 0.0005
"""Between two looks for a message of another vLLM process; a step on a CPU takes a hundred times as long, or longer."""


def register() -> None:
    from vllm.distributed.weight_transfer import WeightTransferEngineFactory
    from vllm.platforms import current_platform

    if BACKEND not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(BACKEND, "asyncgrpo.weights.vllm_backend", "SharedMemoryEngine")
    if current_platform.is_cpu():
        _sleep_between_looks()


def _sleep_between_looks() -> None:
    """Have vLLM's processes sleep a little where they would spin.

    For a second after each message, so all the time while it generates, vLLM's core process looks without a pause
    whether its worker has answered. That takes a whole core. Beside a GPU it is to spare; here it is the learner's.
    """
    from vllm.distributed.device_communicators import shm_broadcast

    shm_broadcast.sched_yield = lambda: time.sleep(CPU_WAIT_SECONDS)
