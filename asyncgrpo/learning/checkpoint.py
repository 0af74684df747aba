"""A learner's part of a checkpoint: everything that makes it go on as if it had never stopped. No pickle.

| file                    | holds                                                                      | written by |
|-------------------------|----------------------------------------------------------------------------|------------|
| `weights.safetensors`   | what trains (all weights, or the adapters), in the type it trains in       | rank 0     |
| `optimiser.safetensors` | AdamW's moments and step of each of them                                   | rank 0     |
| `rank<N>.safetensors`   | random generators of rank N                                                | rank N     |
| `learner.json`          | version, optimiser updates, updates skipped in a row, ranks; rank 0's last | rank 0     |

Ranks hold the same weights, so any number of them may take over weights and optimiser; with another number the
random generators are seeded anew. The learning rate follows from the number of updates and the settings.

Invariant: a load is refused before it has changed anything. Every file names version and updates, so files of two
checkpoints are not taken for one.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from torch.nn import Parameter

from asyncgrpo.errors import LearnerError, RunFolderError
from asyncgrpo.learning import random_state
from asyncgrpo.learning.tensor_file import DTYPE_NAMES, TensorFile
from asyncgrpo.observe.files import replacing, write_text

FORMAT = 1
WEIGHTS, OPTIMISER, FACTS = "weights.safetensors", "optimiser.safetensors", "learner.json"
MOMENTS = ("step", "exp_avg", "exp_avg_sq")
"""AdamW's state of one parameter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What `learner.json` says."""

    format: int = FORMAT
    version: int
    updates: int
    """Optimiser updates made since the run started; skipped ones do not count."""
    skipped_in_a_row: int
    """Updates skipped since the last one that was made."""
    world_size: int
    learning_rate: float
    """Of the next update."""
    lora_alpha: int | None
    """None without adapters."""
    origin: str | None
    """Fingerprint of the frozen weights: what adapters sit on, or the reference. None without any."""

    @property
    def stamp(self) -> dict[str, str]:
        return {"version": str(self.version), "updates": str(self.updates)}


def save(
    directory: str,
    facts: Facts,
    parameters: Mapping[str, Parameter],
    optimiser: torch.optim.Optimizer,
    device: torch.device,
    rank: int,
) -> int:
    """Write this rank's files, each of which appears complete or not at all; returns their bytes.

    Raises LearnerError if the disk refuses; the learner is as before.
    """
    folder = Path(directory)
    random_tensors, random_rest = random_state.capture(device)
    files = {_rank_file(rank): TensorFile(random_tensors, {**facts.stamp, **random_rest})}
    if rank == 0:
        files |= {
            WEIGHTS: TensorFile(parameters, facts.stamp),
            OPTIMISER: TensorFile(_moments(parameters, optimiser), facts.stamp),
        }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            with replacing(folder / name) as file:
                content.write(file)
        if rank == 0:
            write_text(folder / FACTS, json.dumps(asdict(facts), indent=2) + "\n")
    except (RunFolderError, OSError) as error:
        raise LearnerError(f"the learner's part of a checkpoint: {error}") from error
    return sum(content.size for content in files.values())


def read_facts(directory: str) -> Facts:
    """Raises LearnerError if there is no whole checkpoint of a format that is known."""
    path = Path(directory) / FACTS
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise LearnerError(f"{path} is not a learner's part of a checkpoint: {error}; take an earlier one") from error
    known = {field.name for field in fields(Facts)}
    if not isinstance(found, dict) or found.get("format") != FORMAT or set(found) != known:
        raise LearnerError(
            f"{path} is not of format {FORMAT}, which this version of asyncgrpo reads: {str(found)[:200]}"
        )
    return Facts(**found)


def load(
    directory: str,
    facts: Facts,
    parameters: Mapping[str, Parameter],
    optimiser: torch.optim.Optimizer,
    device: torch.device,
    rank: int | None,
) -> None:
    """Take over what `save` wrote, bit for bit. Without a `rank`, random generators are left alone.

    Raises LearnerError if a file is missing or torn, or if names, shapes or types are not those of `parameters`;
    nothing has then changed.
    """
    folder = Path(directory)
    with contextlib.ExitStack() as stack:
        weights = stack.enter_context(_opened(folder / WEIGHTS, facts))
        moments = stack.enter_context(_opened(folder / OPTIMISER, facts))
        _check(folder / WEIGHTS, weights, {name: _layout(parameter) for name, parameter in parameters.items()})
        stored = set(moments.keys())
        trained = [name for name in parameters if any(f"{name}.{key}" in stored for key in MOMENTS)]
        _check(folder / OPTIMISER, moments, _moment_layouts(parameters, trained))
        if rank is not None:
            _restore_random(stack.enter_context(_opened(folder / _rank_file(rank), facts)), device)
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(weights.get_tensor(name))
        optimiser.zero_grad(set_to_none=True)
        optimiser.state.clear()
        for name in trained:
            parameter = parameters[name]
            step, average, square = (moments.get_tensor(f"{name}.{key}") for key in MOMENTS)
            optimiser.state[parameter] = {
                "step": step.to(parameter.device, copy=True),  # what a file gives is still the file's
                "exp_avg": torch.empty_like(parameter, requires_grad=False).copy_(average),
                "exp_avg_sq": torch.empty_like(parameter, requires_grad=False).copy_(square),
            }


@torch.no_grad()
def load_weights(directory: str, facts: Facts, parameters: Mapping[str, Parameter]) -> None:
    """Take over what trained, and nothing else of a checkpoint. Raises LearnerError as `load` does."""
    path = Path(directory) / WEIGHTS
    with _opened(path, facts) as weights:
        _check(path, weights, {name: _layout(parameter) for name, parameter in parameters.items()})
        for name, parameter in parameters.items():
            parameter.copy_(weights.get_tensor(name))


Layout = tuple[str, tuple[int, ...]]
"""Type, as safetensors names it, and shape."""


def _layout(tensor: Tensor) -> Layout:
    return DTYPE_NAMES[tensor.dtype], tuple(tensor.shape)


def _moments(parameters: Mapping[str, Parameter], optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Of what has been updated; before the first update there are none."""
    return {
        f"{name}.{key}": optimiser.state[parameter][key]
        for name, parameter in parameters.items()
        if parameter in optimiser.state
        for key in MOMENTS
    }


def _moment_layouts(parameters: Mapping[str, Parameter], trained: Sequence[str]) -> dict[str, Layout]:
    layouts: dict[str, Layout] = {}
    for name in trained:
        layouts |= dict.fromkeys((f"{name}.exp_avg", f"{name}.exp_avg_sq"), _layout(parameters[name]))
        layouts[f"{name}.step"] = ("F32", ())
    return layouts


@contextlib.contextmanager
def _opened(path: Path, facts: Facts) -> Iterator[Any]:
    """A safetensors file of the same moment as `facts`."""
    try:
        file: Any = safe_open(path, "pt")
    except (OSError, SafetensorError) as error:
        raise LearnerError(f"{path} is missing or torn: {error}; take an earlier checkpoint") from error
    with file:
        stamp = {name: (file.metadata() or {}).get(name) for name in facts.stamp}
        if stamp != facts.stamp:
            raise LearnerError(f"{path} is of {stamp}, but {FACTS} beside it of {facts.stamp}; take another checkpoint")
        yield file


def _check(path: Path, file: Any, expected: Mapping[str, Layout]) -> None:
    """Names, types and shapes, all of them, before anything is taken over."""
    found = set(file.keys())
    for kind, names in (("lacks", expected.keys() - found), ("holds", found - expected.keys())):
        if names:
            raise LearnerError(
                f"{path} {kind} {min(names)!r}{f' and {len(names) - 1} more' if len(names) > 1 else ''}, "
                f"{'which this learner trains' if kind == 'lacks' else 'which this learner does not train'}; resume "
                "with the model.path and lora.* of the run that saved it"
            )
    for name, layout in expected.items():
        piece = file.get_slice(name)
        actual = (piece.get_dtype(), tuple(piece.get_shape()))
        if actual != layout:
            raise LearnerError(
                f"{path}: {name!r} is {_written(actual)}, this learner trains {_written(layout)}; resume with the "
                "model.path, model.dtype and lora.lora_r of the run that saved it"
            )


def _written(layout: Layout) -> str:
    return f"{layout[0]}{list(layout[1])}"


def _restore_random(file: Any, device: torch.device) -> None:
    try:
        random_state.restore(device, {name: file.get_tensor(name) for name in file.keys()}, file.metadata())  # noqa: SIM118
    except (KeyError, ValueError, TypeError, RuntimeError) as error:
        raise LearnerError(f"random generators cannot be restored: {error!r}; take another checkpoint") from error


def _rank_file(rank: int) -> str:
    return f"rank{rank}.safetensors"
