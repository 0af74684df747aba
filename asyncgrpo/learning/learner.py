"""The learner: the current policy, its version and its weights. Synchronous; knows no asyncio and no vLLM.

    step from version v:   shard ──▶ micro-batches ──▶ updates (updates.py) ──▶ version v + 1

Invariant: behaviour log-probabilities are read, never written. Dropout is off, but before adapters where
`lora.lora_dropout` asks for it, so that on the first update the ratio current/proximal is exactly 1.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from asyncgrpo.config import RunConfig
from asyncgrpo.errors import LearnerError
from asyncgrpo.learning.adapter_snapshot import write_adapter
from asyncgrpo.learning.batching import Shard
from asyncgrpo.learning.cutting import is_inert
from asyncgrpo.learning.export import ADAPTER_FOLDER, export_dtype, export_tensors, share_weights
from asyncgrpo.learning.four_bit import unsaid
from asyncgrpo.learning.lora import BASE_FINGERPRINT, merged_state, save_adapter
from asyncgrpo.learning.memory import StepMemory
from asyncgrpo.learning.microbatch import MicroBatch, micro_batches, proximal_logprobs, scoring_batch
from asyncgrpo.learning.model import base_fingerprint, load
from asyncgrpo.learning.perturbation import perturbed, perturbed_adapters
from asyncgrpo.learning.replayed_baseline import shifts_baseline
from asyncgrpo.learning.report import Stopwatch, step_metrics
from asyncgrpo.learning.resume import Resumable
from asyncgrpo.learning.snapshot import write_safetensors
from asyncgrpo.learning.updates import Updates
from asyncgrpo.types import Batch, Resumed, Snapshot, StepReport

logger = logging.getLogger(__name__)


class Learner:
    """One rank. With `world_size` > 1, torch.distributed must be initialised before.

    Args:
        device: `cpu`, `cuda` or `cuda:N` as torch names it.

    Raises:
        ConfigError: the model, an adapter target or the schedule cannot be had.
        LearnerError: the architecture is not supported.
    """

    def __init__(self, config: RunConfig, device: str, rank: int = 0, world_size: int = 1) -> None:
        self.config = config
        self.version = 0
        self.rank, self.world_size = rank, world_size
        self._device = torch.device(device)
        self._loaded = load(config, self._device)
        self._updates = Updates(self._loaded, config, self._device, world_size)
        self._resumable = Resumable(self._loaded, self._updates, config, self._device, rank, world_size)

    def train(self, shard: Shard) -> StepReport:
        """Take one step with this rank's shard.

        Updates whose loss or gradient is not finite are skipped and reported. Raises LearnerError if the batch is for
        another version, if more than `training.max_skipped_updates` in a row are skipped, or for want of memory; the
        weights are then as before the failing update.
        """
        if shard.batch.version != self.version:
            raise LearnerError(f"a batch for version {shard.batch.version} reached a learner at version {self.version}")
        watch, memory = Stopwatch(self._device), StepMemory(self._device)
        learning_rate = self._updates.learning_rate
        trained = [index for index, sizes in enumerate(shard.sizes) if sizes.tokens]
        with watch.part("total"):
            minibatches = {index: self._minibatch(shard, shard.members(index)) for index in trained}
            try:
                updates, skipped = self._updates.step(shard.batch, minibatches, watch)
            except LearnerError as error:
                raise error.saying(f"step {self.version}, {error}") from error
            except torch.OutOfMemoryError as error:
                raise LearnerError(
                    f"step {self.version} does not fit into memory with "
                    f"learner.token_budget={self.config.learner.token_budget}; lower it, or set "
                    f"training.gradient_checkpointing=true ({error})"
                ) from error
        self.version += 1
        metrics = step_metrics(
            updates,
            shard.sizes,
            updates_planned=self.config.training.num_iterations * len(shard.sizes),
            updates_skipped=len(skipped),
            learning_rate=learning_rate,
            has_reference=self.config.objective.beta > 0,
        )
        logger.info("version %d: loss %.6g, %d updates", self.version, metrics["loss"], len(updates))
        for update in skipped:
            logger.warning("version %d: skipped, not finite: %s", self.version, update)
        return StepReport(
            version=self.version,
            metrics=metrics,
            seconds=watch.seconds,
            memory=memory.bytes(),
            skipped=tuple(skipped),
            proximal_logprobs=proximal_logprobs(shard.batch, [m for part in minibatches.values() for m in part]),
        )

    def score(
        self, sequences: Sequence[tuple[Sequence[int], Sequence[int]]], perturbation: int | None = None
    ) -> list[np.ndarray]:
        """Log-probabilities (float32, nats, at the sampling temperature) of each (prompt, completion)'s completion."""
        batch = scoring_batch(sequences)
        scores = [np.empty(0, dtype=np.float32) for _ in sequences]
        members = np.flatnonzero(batch.completion_lengths)
        with torch.no_grad(), self._perturbed(perturbation):
            for micro in self._micro_batches(batch, members):
                logprobs_BT, _ = self._updates.policy.grids(micro)
                for member, logprobs_T in zip(micro.members_B, logprobs_BT.cpu().numpy(), strict=True):
                    scores[member] = logprobs_T[: batch.completion_lengths[member]]
        return scores

    def write_snapshot(self, path: str, version: int, perturbation: int | None = None) -> Snapshot:
        """Write the policy as a safetensors file that appears at `path` complete; with `weights.transport=lora` the
        adapters alone, as a folder.

        With `perturbation`, the weights written are those that `score` uses for the same seed.
        Raises LearnerError if the learner has another version, or the file system too little room.
        """
        if perturbation is None and version != self.version:
            raise LearnerError(f"a snapshot of version {version} was asked of a learner at version {self.version}")
        started, dtype = time.perf_counter(), export_dtype(self.config)
        with self._perturbed(perturbation):
            if self._publishes_adapters:
                assert self._loaded.adapted is not None, "weights.transport=lora without adapters is refused"
                size = write_adapter(path, self._loaded.adapted, dtype, self.config.model.path)
            else:
                size = write_safetensors(path, export_tensors(self._loaded.model), dtype, {"format": "pt"})
        return Snapshot(version=version, path=path, bytes=size, seconds=time.perf_counter() - started)

    @contextlib.contextmanager
    def exported(self, perturbation: int | None = None) -> Iterator[dict[str, Tensor]]:
        """The policy in memory, for transports without files: checkpoint names to tensors of the engines' type."""
        dtype = export_dtype(self.config)
        with self._perturbed(perturbation):
            tensors = export_tensors(self._loaded.model)
            yield {name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}

    def save_model(self, directory: str) -> None:
        """Save the model in Hugging Face format, adapters merged, and those by themselves in `adapter` below it. The
        tokenizer is the orchestrator's to save."""
        loaded = self._loaded
        with unsaid(loaded.model):
            loaded.model.save_pretrained(directory, state_dict=dict(merged_state(loaded.model)))
        share_weights(directory)
        if loaded.adapted is not None:
            adapter = Path(directory) / ADAPTER_FOLDER
            save_adapter(loaded.adapted, adapter, self.config.model.path)
            (adapter / BASE_FINGERPRINT).write_text(base_fingerprint(loaded.model))
            share_weights(directory, ADAPTER_FOLDER)

    def save(self, directory: str) -> int:
        """Write this rank's part of a checkpoint into `directory`, which ranks share; returns its bytes.

        `checkpoint` says what it holds. Raises LearnerError if the disk refuses; the learner is as before.
        """
        return self._resumable.save(directory, self.version)

    def load(self, directory: str, version: int | None = None) -> Resumed:
        """Go on from a checkpoint, on as many ranks exactly as if there had been no stop. Every rank must load it.

        Args:
            version: What it must be of, if given.

        Raises LearnerError if it is not whole, or not of this model and these adapters; weights are as before.
        """
        resumed = self._resumable.load(directory, version)
        self.version = resumed.version
        for remark in resumed.remarks:
            logger.warning("%s: %s", directory, remark)
        logger.info("version %d taken over from %s, %d updates", resumed.version, directory, resumed.updates)
        return resumed

    def _minibatch(self, shard: Shard, members: np.ndarray) -> list[MicroBatch]:
        """Micro-batches; those without a gradient come first, and the last one has a backward pass, on every rank."""
        objective, batch = self.config.objective, shard.batch
        flat = np.zeros(len(members), dtype=bool)
        if not (objective.beta or objective.entropy_coef):  # the policy term alone has the advantage as a factor
            flat = is_inert(batch.advantages[members], batch.group_ids[members])
            if shifts_baseline(self.config):  # the others of its group may be on another rank
                flat &= batch.uses[members] == 0
        flat[-1] &= not flat.all()
        inert = self._micro_batches(batch, members[flat], shard.token_weights)
        for micro in inert:
            micro.has_gradient = False
        return inert + self._micro_batches(batch, members[~flat], shard.token_weights)

    def _micro_batches(
        self, batch: Batch, members: np.ndarray, token_weights: np.ndarray | None = None
    ) -> list[MicroBatch]:
        self._check_vocabulary(batch)
        budget, packing = self.config.learner.token_budget, self._loaded.packing
        return micro_batches(batch, members, budget, packing, self._device, token_weights)

    def _check_vocabulary(self, batch: Batch) -> None:
        """Before a device sees the ids: kernels there answer with an abort, or with nothing at all."""
        size = self._loaded.model.get_input_embeddings().weight.shape[0]
        for tokens in (batch.prompt_tokens, batch.completion_tokens):
            outside = tokens[(tokens < 0) | (tokens >= size)]
            if len(outside):
                raise LearnerError(f"token id {outside[0]} is outside the model's vocabulary of {size}")

    def _perturbed(self, seed: int | None) -> contextlib.AbstractContextManager[None]:
        if seed is None:
            return contextlib.nullcontext()
        if self._publishes_adapters:  # engines have the base model, which nobody perturbs there
            return perturbed_adapters(self._loaded.model, seed)
        return perturbed(self._loaded.model, self._loaded.model.get_output_embeddings(), seed)

    @property
    def _publishes_adapters(self) -> bool:
        return self.config.weights.transport == "lora"
