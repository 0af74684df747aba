"""AsyncGRPOTrainer: the same run from Python, in the shape that users of TRL know.

trainer = AsyncGRPOTrainer(
    model="Qwen/Qwen2.5-0.5B-Instruct",
    reward_funcs=[correct, lambda completions, **columns: [-len(c) / 1000 for c in completions]],
    args=AsyncGRPOConfig(output_dir="runs/first", num_generations=8, max_staleness=2),
    train_dataset=dataset,
)
trainer.train()
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from asyncgrpo.config import RunConfig
from asyncgrpo.config.flat import AsyncGRPOConfig
from asyncgrpo.config.loading import LoadedConfig
from asyncgrpo.config.names import FIELDS
from asyncgrpo.config.render import render_config
from asyncgrpo.errors import ConfigError
from asyncgrpo.generation.server import VLLM_MODULE
from asyncgrpo.launch import Outcome, run_job
from asyncgrpo.preflight import prepare
from asyncgrpo.rewards.functions import from_callables

RewardCallable = Callable[..., Any]


class AsyncGRPOTrainer:
    """Trains `model` on `train_dataset` with the sum of `reward_funcs`.

    Args:
        model: folder or hub name; or a transformers model, which is saved beside the run first (give its tokenizer as
            `processing_class`).
        reward_funcs: one function or several, plain or async, lambdas and closures included, called with `prompts`,
            `completions`, `completion_ids` and the dataset's columns.
        args: settings; the defaults when absent.
        train_dataset: a `datasets.Dataset` or a list of rows with a `prompt`. Absent: `args.dataset` names it.
        processing_class: tokenizer; the model's own when absent.

    Raises ConfigError, DataError or RunFolderError for what can be known to be wrong before a model loads.
    """

    def __init__(
        self,
        model: Any,
        reward_funcs: RewardCallable | Sequence[RewardCallable],
        args: AsyncGRPOConfig | None = None,
        train_dataset: Any = None,
        processing_class: Any = None,
        *,
        engine_module: str = VLLM_MODULE,
    ) -> None:
        self.args = args if args is not None else AsyncGRPOConfig()
        self._engine_module = engine_module
        self._owned = ExitStack()
        path = model if isinstance(model, str | os.PathLike) else self._saved(model, processing_class)
        config = self.args.to_run_config(model={"path": os.fspath(path)})
        rewards = from_callables(reward_funcs, self.args.reward_weights, self.args.reward_timeout)
        self.job = prepare(config, rows=train_dataset, rewards=rewards, tokenizer=processing_class)
        self._config_text = render_config(_from_python(config))

    def train(self) -> Outcome:
        """Run to the last step; progress goes to stdout. Works where an event loop already runs (notebooks), too."""
        with self._owned:
            return _outside_a_running_loop(
                lambda: run_job(self.job, config_text=self._config_text, engine_module=self._engine_module)
            )

    def _saved(self, model: Any, tokenizer: Any) -> str:
        """Engines and learner load from files: write the model where both find it, until the run has ended."""
        if not hasattr(model, "save_pretrained"):
            raise ConfigError(f"model: expected a path, a hub name or a transformers model, not {type(model).__name__}")
        if tokenizer is None:
            raise ConfigError("model is an object, so its tokenizer must be given as processing_class")
        folder = self._owned.enter_context(tempfile.TemporaryDirectory(prefix="asyncgrpo-model-"))
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return folder


def _from_python(config: RunConfig) -> LoadedConfig:
    return LoadedConfig(config=config, sources=dict.fromkeys([*FIELDS, "rewards"], "Python"))


def _outside_a_running_loop(run: Callable[[], Outcome]) -> Outcome:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return run()
    results: list[Outcome] = []
    errors: list[BaseException] = []

    def target() -> None:
        try:
            results.append(run())
        except BaseException as error:  # handed to the caller's thread
            errors.append(error)

    thread = threading.Thread(target=target, name="asyncgrpo")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]
