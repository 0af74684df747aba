"""Asynchronous GRPO: vLLM keeps generating while the model trains, and every token knows its policy version.

Importing this package is cheap: the trainer, and with it torch, is loaded when it is first asked for.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from asyncgrpo.config.flat import AsyncGRPOConfig
    from asyncgrpo.trainer import AsyncGRPOTrainer

__all__ = ["AsyncGRPOConfig", "AsyncGRPOTrainer"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name == "AsyncGRPOConfig":
        from asyncgrpo.config.flat import AsyncGRPOConfig

        return AsyncGRPOConfig
    if name == "AsyncGRPOTrainer":
        from asyncgrpo.trainer import AsyncGRPOTrainer

        return AsyncGRPOTrainer
    raise AttributeError(f"module 'asyncgrpo' has no attribute {name!r}")
