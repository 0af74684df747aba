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
import json
import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, NoReturn

from asyncgrpo.config.flat import AsyncGRPOConfig
from asyncgrpo.config.loading import from_python
from asyncgrpo.config.names import DOTTED, FLAT, TRAINER_ARGUMENTS, closest, spell
from asyncgrpo.config.render import render_config
from asyncgrpo.errors import AsyncGRPOError, ConfigError, RunFolderError
from asyncgrpo.generation.spec import VLLM_MODULE
from asyncgrpo.launch import OnStart, Outcome, run_job
from asyncgrpo.observe.run_folder import RunFolder
from asyncgrpo.preflight import check_output_dir, prepare
from asyncgrpo.rewards.functions import RewardFunction, from_callables

RewardCallable = Callable[..., Any] | RewardFunction | str

_ARGUMENTS = (
    "model",
    "reward_funcs",
    "args",
    "train_dataset",
    "eval_dataset",
    "processing_class",
    "tools",
    "environment_factory",
)
_ABSENT = "this version does not have it"
_NOT_YET = f"{_ABSENT}; leave it out"
_INSTEAD = {
    "peft_config": "set lora_r, lora_alpha and lora_target_modules in AsyncGRPOConfig instead",
    "callbacks": f"{_NOT_YET}; metrics are served and written below output_dir",
    "reward_processing_classes": "leave it out; a reward model has the tokenizer of its own folder",
    "optimizers": f"{_NOT_YET}; the optimiser is AdamW, see learning_rate and weight_decay",
    "rollout_func": f"{_ABSENT}; give an environment_factory, whose step() is asked after every answer",
}
"""TRL's arguments that are refused, and what to do instead."""

_SAVED = "the learner is a process of its own; after train() the model lies in final_model/ below output_dir"
_NOT_HERE = {
    "model": f"{_SAVED}: AutoModelForCausalLM.from_pretrained(outcome.folder.model_dir)",
    "save_model": f"{_SAVED}, saved by train()",
    "push_to_hub": f"{_SAVED}: load it and push it from there",
    "state": "train() returns steps and reward; every step is a line of metrics.jsonl below output_dir",
    "evaluate": "give eval_dataset, and train() evaluates before, after and every eval_steps; of a model alone: "
    "`asyncgrpo evaluate MODEL CONFIG.yaml`",
    "predict": f"{_ABSENT}; load final_model/ below output_dir, in vLLM or transformers",
    "add_callback": f"{_ABSENT}; metrics are served and written below output_dir",
}
"""TRL's attributes that there are not, and what to do instead."""


class AsyncGRPOTrainer:
    """Trains `model` on `train_dataset` with the sum of `reward_funcs`.

    Args:
        model: folder or hub name; or a transformers model, which is saved to a temporary folder first, kept for as long
            as the trainer (give its tokenizer as `processing_class`).
        reward_funcs: one function or several, plain or async, lambdas and closures included, called with `prompts`,
            `completions`, `completion_ids` and the dataset's columns; a string names a reward model; what
            `asyncgrpo.rewards.reward` makes has settings of its own.
        args: settings; the defaults when absent.
        train_dataset: a `datasets.Dataset` or `IterableDataset`, a list of rows with a `prompt`, or a path or hub name
            of rows. Absent where `args.dataset_mix` names datasets.
        processing_class: tokenizer; the model's own when absent.
        tools: functions that the model may call, plain or async, with type hints and a docstring.
        environment_factory: makes the environment of a sample: see `asyncgrpo.environments.Environment`; or an object
            whose public methods are tools. Without `reward_funcs`, its own reward is the reward.
        eval_dataset: held-out prompts, given like train_dataset, which train() evaluates on before, after and every
            `eval_steps`; none when absent.

    Raises ConfigError, DataError or RunFolderError for what can be known to be wrong before a model loads.
    """

    def __init__(
        self,
        model: Any,
        reward_funcs: RewardCallable | Sequence[RewardCallable] | None = None,
        args: AsyncGRPOConfig | None = None,
        train_dataset: Any = None,
        processing_class: Any = None,
        tools: Sequence[Callable[..., Any]] | None = None,
        environment_factory: Callable[..., Any] | None = None,
        *,
        eval_dataset: Any = None,
        engine_module: str = VLLM_MODULE,
        **unknown: Any,
    ) -> None:
        with _python_names():
            _refuse(unknown)
            turns = {"tools": tools or (), "environment_factory": environment_factory}
            self._prepare(model, reward_funcs, args, train_dataset, processing_class, eval_dataset, turns)
        self._engine_module = engine_module

    def _prepare(
        self,
        model: Any,
        reward_funcs: RewardCallable | Sequence[RewardCallable] | None,
        args: AsyncGRPOConfig | None,
        train_dataset: Any,
        processing_class: Any,
        eval_dataset: Any,
        turns: Mapping[str, Any],
    ) -> None:
        if not isinstance(args, AsyncGRPOConfig | None):
            raise ConfigError(
                f"args: expected an AsyncGRPOConfig, not {type(args).__name__}; its fields have TRL's names"
            )
        self.args = args if args is not None else AsyncGRPOConfig()
        path = model if isinstance(model, str | os.PathLike) else self._saved(model, processing_class)
        has_mix = bool(self.args.to_run_config().data.mix)
        sections = {"model": {"path": os.fspath(path)}, **_named(train_dataset, has_mix), **_held_out(eval_dataset)}
        eval_rows = None if "evaluation" in sections else eval_dataset
        rows = None if "data" in sections else train_dataset
        config = self.args.to_run_config(**sections)
        settings = self.args
        rewards = None
        if reward_funcs is not None or not any(turns.values()):
            rewards = from_callables(
                reward_funcs or (), settings.reward_weights, settings.reward_timeout, settings.reward_on_error
            )
        self.job = prepare(config, rows=rows, rewards=rewards, tokenizer=processing_class, eval_rows=eval_rows, **turns)
        given = {DOTTED[name] for name in settings.model_fields_set if name in DOTTED} | {"model.path", "rewards"}
        given |= {f"{section}.dataset" for section in ("data", "evaluation") if section in sections}
        self._config_text = render_config(from_python(config, given).settled(self.job.config))
        if rewards is not None:  # `rewards: []` loads again, and would be all that is known of them
            named = ", ".join(f"{json.dumps(each.name)} x {each.weight:g}" for each in self.job.rewards)
            self._config_text += f"\n# reward_funcs, given in Python: {named}\n"

    def __getattr__(self, name: str) -> NoReturn:
        """Only of what is not there."""
        reason = f": {_NOT_HERE[name]}" if name in _NOT_HERE else ""
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}{reason}")

    def train(self, resume_from_checkpoint: str | bool | None = None) -> Outcome:
        """Run to the last step; progress goes to stdout. Works where an event loop already runs (notebooks), too.

        A run folder (`output_dir`) that holds a checkpoint is gone on from, unless `resume` says otherwise.

        Args:
            resume_from_checkpoint: True raises RunFolderError where there is no checkpoint, False where there is one. A
                path is refused: the newest complete checkpoint of `output_dir` is always the one.

        Interrupted between the first step and the last, it finishes the step in hand, saves and returns. Where a loop
        already runs, or before the first step, it stops at once and raises KeyboardInterrupt. Nothing is left running.
        """
        with _python_names():
            self._choose_start(resume_from_checkpoint)
            return _outside_a_running_loop(self._run)

    def _choose_start(self, resume_from_checkpoint: str | bool | None) -> None:
        """Raises ConfigError or RunFolderError for a start that cannot be had."""
        if resume_from_checkpoint is None:
            return
        if not isinstance(resume_from_checkpoint, bool):
            raise ConfigError(
                f"resume_from_checkpoint={resume_from_checkpoint!r}: give True, and the run's folder as output_dir; "
                "its newest complete checkpoint is resumed from"
            )
        config = self.job.config
        if resume_from_checkpoint and not RunFolder(config.run.output_dir).has_checkpoint:
            raise RunFolderError(
                f"resume_from_checkpoint=True, but output_dir={config.run.output_dir} has no checkpoint; name the "
                "folder of a run that has one, or leave resume_from_checkpoint out to start anew"
            )
        run = config.run.model_copy(update={"resume": "must" if resume_from_checkpoint else "never"})
        check_output_dir(run)
        self.job = replace(self.job, config=config.model_copy(update={"run": run}))

    def _run(self, on_start: OnStart) -> Outcome:
        return run_job(self.job, config_text=self._config_text, engine_module=self._engine_module, on_start=on_start)

    def _saved(self, model: Any, tokenizer: Any) -> str:
        """Engines and learner load from files: write the model where both find it, while this trainer lives."""
        if not hasattr(model, "save_pretrained"):
            raise ConfigError(f"model: expected a path, a hub name or a transformers model, not {type(model).__name__}")
        if tokenizer is None:
            raise ConfigError("model is an object, so its tokenizer must be given as processing_class")
        folder = tempfile.mkdtemp(prefix="asyncgrpo-model-")
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return folder


@contextmanager
def _python_names() -> Iterator[None]:
    """Errors name settings as arguments, not by section."""
    try:
        yield
    except AsyncGRPOError as error:
        error.args = (spell(str(error), lambda key: TRAINER_ARGUMENTS.get(key) or FLAT[key]),)
        raise


def _named(dataset: Any, has_mix: bool) -> dict[str, Any]:
    """The `data` section of a dataset that is named rather than given."""
    if dataset is None and has_mix:
        return {}
    if dataset is None:
        raise ConfigError(
            "train_dataset is missing: give a datasets.Dataset, a list of rows, a JSONL, JSON or Parquet file, "
            "a folder, or the name of a hub dataset"
        )
    if isinstance(dataset, Mapping):  # a DatasetDict is one
        splits = ", ".join(map(repr, dataset)) or "none"
        raise ConfigError(f"train_dataset is a dict; give one split, as in dataset['train'] (it has {splits})")
    return {"data": {"dataset": os.fspath(dataset)}} if isinstance(dataset, str | os.PathLike) else {}


def _held_out(dataset: Any) -> dict[str, Any]:
    """The `evaluation` section of a held-out dataset that is named rather than given."""
    if isinstance(dataset, Mapping):
        names = ", ".join(map(repr, dataset)) or "none"
        raise ConfigError(f"eval_dataset is a dict; one set is evaluated on: give one of {names}")
    return {"evaluation": {"dataset": os.fspath(dataset)}} if isinstance(dataset, str | os.PathLike) else {}


def _refuse(unknown: Mapping[str, Any]) -> None:
    """Raise ConfigError for an argument that is given; TRL's users pass None for those they do not need."""
    for name, value in unknown.items():
        if name not in _INSTEAD:
            near = closest(name, _ARGUMENTS)
            raise ConfigError(
                f"unknown argument {name!r}; " + (f"did you mean {near}?" if near else "see AsyncGRPOConfig")
            )
        if value is not None and value != (None, None):  # the latter is TRL's default of `optimizers`
            raise ConfigError(f"{name} is given: {_INSTEAD[name]}")


class _Cancellation:
    """Ends a run from another thread; also one that has not started yet."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wanted = False
        self._started: tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]] | None = None

    def on_start(self, loop: asyncio.AbstractEventLoop, run: asyncio.Task[Any]) -> None:
        with self._lock:
            self._started = loop, run
            if self._wanted:
                run.cancel()

    def cancel(self) -> None:
        with self._lock:
            self._wanted = True
            if self._started is not None:
                loop, run = self._started
                with suppress(RuntimeError):  # the loop is closed: the run has ended
                    loop.call_soon_threadsafe(run.cancel)


def _outside_a_running_loop(run: Callable[[OnStart], Outcome]) -> Outcome:
    cancellation = _Cancellation()
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return run(cancellation.on_start)
    outcome: Future[Outcome] = Future()  # not Thread.join: interrupted, it takes the thread for ended

    def target() -> None:
        try:
            outcome.set_result(run(cancellation.on_start))
        except BaseException as error:  # handed to the caller's thread
            outcome.set_exception(error)

    threading.Thread(target=target, name="asyncgrpo").start()
    try:
        wait([outcome])
    except BaseException:  # a KeyboardInterrupt: the run must not go on where nobody sees it
        cancellation.cancel()
        wait([outcome])
        raise
    return outcome.result()
