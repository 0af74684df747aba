"""Finds what a run has trained, or any model, and loads it: for `merge`, `chat` and `generate`.

| given                              | model                                              | template and sampling |
|------------------------------------|----------------------------------------------------|-----------------------|
| folder of a run                    | its final model, or its newest complete checkpoint | the run's             |
| the same, and a step               | the checkpoint of that step                        | the run's             |
| folder of a model or of an adapter | that                                               | the defaults          |
| anything else                      | the model of that name on the hub                  | the defaults          |
"""

from __future__ import annotations

import glob
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from safetensors import SafetensorError

from asyncgrpo.checkpoint.store import Checkpoint, CheckpointStore
from asyncgrpo.checkpoints import LEARNER
from asyncgrpo.config import RunConfig
from asyncgrpo.config.adapter import is_adapter, with_adapter
from asyncgrpo.config.loading import load_config
from asyncgrpo.config.resolve import locate_model
from asyncgrpo.environments.building import find_source
from asyncgrpo.errors import CheckpointError, ConfigError, RunFolderError
from asyncgrpo.learning.export import ADAPTER_FOLDER
from asyncgrpo.observe.files import sync_directory, sync_tree, write_error
from asyncgrpo.observe.rollout_files import read_rollouts
from asyncgrpo.observe.run_folder import RunFolder
from asyncgrpo.playing import with_tools
from asyncgrpo.prompts.encoding import load_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """A model that can be loaded."""

    config: RunConfig
    """How it is loaded (`model`, `lora`), prompted (`data`) and sampled from (`generation`)."""
    name: str
    """What it is, for people: `runs/first, final model`."""
    run: RunFolder | None = None
    step: int | None = None
    """Steps it was trained for, if that is known."""
    learner_part: Path | None = None
    """Folder in a checkpoint with its weights; None: they are where `config` says."""
    is_chat: bool | None = None
    """Whether it was trained on chats; None if that is not known."""

    def load(self) -> PreTrainedModel:
        """On the CPU, in float32, adapters inside. Raises ConfigError or LearnerError."""
        from asyncgrpo.learning.merged import load_policy

        return load_policy(self.config, self.learner_part)

    def as_prompted(self) -> RunConfig:
        """Its configuration as prompts are encoded with: chat templates show the tools that it was trained with.
        Raises ConfigError if these are not to be found."""
        return with_tools(self.config, find_source(self.config))

    def tokenizer(self) -> Any:
        """The one saved with the final model, else the base model's. Raises ConfigError."""
        config = self.config
        if self.run is not None and any(self.run.model_dir.glob("tokenizer*")):
            path = str(self.run.model_dir.absolute())
            config = config.model_copy(update={"model": config.model.model_copy(update={"path": path})})
        return load_tokenizer(config)


def find(source: str, step: int | None = None, overrides: Sequence[str] = (), like: str | None = None) -> Trained:
    """What `source` names, as in the table above.

    Args:
        overrides: settings, `--section.field=value`, over those of the run.
        like: a configuration file that takes the place of the run's `data` and `generation`.

    Raises ConfigError, RunFolderError or CheckpointError, each with the remedy.
    """
    folder = RunFolder(source)
    if folder.config_file.is_file():
        found = _of_run(folder, step, load_config(folder.config_file, overrides).config)
    else:
        if step is not None:
            raise ConfigError(f"--step={step} is a checkpoint of a run, and {source} is no run folder; leave it out")
        _check_model(source)
        found = Trained(config=_of_model(source, load_config(None, overrides).config), name=source)
    if like is None:
        return found
    settings = load_config(like, overrides).config
    update = {"data": settings.data, "generation": settings.generation}
    return Trained(
        config=found.config.model_copy(update=update),
        name=found.name,
        run=found.run,
        step=found.step,
        learner_part=found.learner_part,
    )


def _check_model(source: str) -> None:
    folder = Path(locate_model(source))
    if not folder.is_absolute():
        if folder.parent != Path() and folder.parent.is_dir():  # the hub would be asked for long, and in vain
            raise ConfigError(f"{source} does not exist, though {folder.parent} does; name a folder that is there")
        return  # a name on the hub
    if not folder.exists():
        raise ConfigError(f"{source} does not exist; name a run folder, a model's folder, or a model on the hub")
    if not (is_adapter(source) or (folder / "config.json").is_file()):
        raise ConfigError(f"{source} is neither a run folder (no config.yaml) nor a model's (no config.json)")


def _of_model(source: str, config: RunConfig) -> RunConfig:
    """For an adapter, its base model may be given as model.path."""
    if is_adapter(source):
        return with_adapter(config.model_copy(update={"lora": config.lora.model_copy(update={"lora_adapter": source})}))
    return config.model_copy(update={"model": config.model.model_copy(update={"path": locate_model(source)})})


def _of_run(folder: RunFolder, step: int | None, config: RunConfig) -> Trained:
    is_chat = _trained_on_chats(folder)
    if step is None and (folder.model_dir / "config.json").is_file() and trained_since_its_end(folder) is None:
        return Trained(
            config=_final(folder.model_dir.absolute(), config),
            name=f"{folder.path}, final model",
            run=folder,
            step=steps_of_final(folder),
            is_chat=is_chat,
        )
    checkpoint = _checkpoint(folder, step)
    return Trained(
        config=config,
        name=f"{folder.path}, checkpoint of step {checkpoint.step}",
        run=folder,
        step=checkpoint.step,
        learner_part=checkpoint.folder / LEARNER,
        is_chat=is_chat,
    )


def _final(model_dir: Path, config: RunConfig) -> RunConfig:
    """The final model as it is; of adapters, these on their base model: what is merged there may be rounded."""
    adapter = model_dir / ADAPTER_FOLDER
    if config.lora.lora_r and is_adapter(str(adapter)) and _is_there(config.model.path):
        lora = config.lora.model_copy(update={"lora_adapter": str(adapter)})
        return with_adapter(config.model_copy(update={"lora": lora}))
    model = config.model.model_copy(update={"path": str(model_dir), "load_in_4bit": False})  # merged, once and for all
    return config.model_copy(update={"model": model, "lora": RunConfig().lora})


def _is_there(path: str) -> bool:
    """A model that Python gave as an object lay in a folder that is gone."""
    return not Path(path).is_absolute() or Path(path).is_dir()


def _checkpoint(folder: RunFolder, step: int | None) -> Checkpoint:
    store = CheckpointStore(folder.checkpoints_dir)
    if step is not None:
        return store.at(step)
    checkpoint, passed_over = store.newest()
    if checkpoint is None:
        reasons = "".join(f"\n{reason}" for reason in passed_over)
        raise CheckpointError(
            f"{folder.path} has neither a final model nor a complete checkpoint; train on, or name another run{reasons}"
        )
    return checkpoint


def trained_since_its_end(folder: RunFolder) -> int | None:
    """The step of the newest checkpoint of a run that was made longer: its final model is of the end it had before."""
    end, steps = steps_of_final(folder), CheckpointStore(folder.checkpoints_dir).steps()
    return steps[0] if end is not None and steps and steps[0] > end else None


def steps_of_final(folder: RunFolder) -> int | None:
    """Steps that the final model was trained for, if that is known."""
    try:
        return int(json.loads(folder.summary_json.read_text(encoding="utf-8"))["steps"])
    except (OSError, ValueError, KeyError):
        return None


def _trained_on_chats(folder: RunFolder) -> bool | None:
    """By what was recorded of its prompts."""
    for file in sorted(folder.rollouts_dir.glob("step_*.parquet")):
        try:
            rows = read_rollouts(file, ["conversational"])
        except (OSError, RunFolderError):  # removed just now, or damaged; another will tell
            continue
        if len(rows):
            return bool(rows["conversational"][0].as_py())
    return None


@contextmanager
def appearing(folder: Path) -> Iterator[Path]:
    """A folder to be filled, which gets the name `folder` when the block ends without an error, complete and on disk.

    Raises RunFolderError if there is something by that name already, or the disk refuses.
    """
    if folder.exists():
        raise RunFolderError(f"{folder} exists; name another with --out, or remove it")
    _clear_leftovers(folder)
    draft = folder.with_name(f".{folder.name}.{os.getpid()}.draft")
    try:
        draft.mkdir(parents=True)
        yield draft
        sync_tree(draft)
        os.rename(draft, folder)
        sync_directory(folder.parent)
    except SafetensorError as error:  # its way to say that the disk is full
        raise RunFolderError(f"cannot write {folder}: {error}") from error
    except OSError as error:
        raise write_error(folder, error) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _clear_leftovers(folder: Path) -> None:
    """Of processes that were killed while they filled theirs."""
    for left in folder.parent.glob(f".{glob.escape(folder.name)}.*.draft"):
        number = left.name.split(".")[-2]
        if number.isdigit() and not psutil.pid_exists(int(number)):
            shutil.rmtree(left, ignore_errors=True)
