"""The learner: holds the current policy and the optimiser, and takes steps. Synchronous; knows no asyncio and no vLLM.

    step v:   proximal = log π under θ_v           (before the first update; free if there is only one)
              for every pass, for every minibatch:
                  for every micro-batch: forward, objective, backward
                  clip the gradient, update
              version v + 1

Invariant: behaviour log-probabilities are read, never written, and dropout is off, so that on the first update the
ratio current/proximal is exactly 1.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from accelerate import Accelerator, DistributedDataParallelKwargs
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from asyncgrpo.config import RunConfig
from asyncgrpo.errors import LearnerError
from asyncgrpo.learning.batching import Denominators, Shard
from asyncgrpo.learning.export import export_dtype, export_tensors
from asyncgrpo.learning.lora import merged_state, set_lora_dropout
from asyncgrpo.learning.microbatch import MicroBatch, micro_batches, scoring_batch
from asyncgrpo.learning.model import load
from asyncgrpo.learning.objectives.metrics import Counts
from asyncgrpo.learning.objectives.objective import Tokens, build_objective
from asyncgrpo.learning.optimiser import build_optimiser, build_schedule
from asyncgrpo.learning.perturbation import perturbed
from asyncgrpo.learning.policy import Policy
from asyncgrpo.learning.report import Stopwatch, Update, step_metrics
from asyncgrpo.learning.snapshot import write_safetensors
from asyncgrpo.types import Batch, Snapshot, StepReport

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
        self._policy = self._wrap(self._loaded.model)
        self._objective = build_objective(config.objective)
        self._parameters = [parameter for parameter in self._policy.parameters() if parameter.requires_grad]
        self._optimiser = build_optimiser(self._parameters, config.training)
        self._schedule = build_schedule(self._optimiser, config.training)
        # Not for one rank: accelerate would join whatever process group the environment names.
        self._accelerator = self._across_ranks() if world_size > 1 else None
        self._distributed = self._accelerator.prepare_model(self._policy) if self._accelerator else self._policy

    def train(self, shard: Shard) -> StepReport:
        """Take one step with this rank's shard.

        Raises LearnerError if the batch is for another version, or if a loss or gradient is not finite; the weights
        are then as before the failing update.
        """
        if shard.batch.version != self.version:
            raise LearnerError(f"a batch for version {shard.batch.version} reached a learner at version {self.version}")
        training, watch = self.config.training, Stopwatch(self._device)
        updates: list[Update] = []
        learning_rate = float(self._schedule.get_last_lr()[0])
        with watch.part("total"):
            minibatches = [
                self._micro_batches(shard.batch, shard.members(index)) for index in range(len(shard.denominators))
            ]
            with watch.part("proximal"):
                self._prepare(minibatches, is_single_update=training.num_iterations * len(minibatches) == 1)
            for _ in range(training.num_iterations):
                for minibatch, denominators in zip(minibatches, shard.denominators, strict=True):
                    if denominators.tokens == 0:
                        continue
                    learning_rate = float(self._schedule.get_last_lr()[0])
                    updates.append(self._update(minibatch, denominators, len(updates), watch))
        self.version += 1
        metrics = step_metrics(
            updates,
            shard.denominators,
            skipped=training.num_iterations * len(minibatches) - len(updates),
            learning_rate=learning_rate,
            has_reference=self.config.objective.beta > 0,
        )
        logger.info("version %d: loss %.6g, %d updates", self.version, metrics["loss"], len(updates))
        return StepReport(version=self.version, metrics=metrics, seconds=watch.seconds)

    def score(
        self, sequences: Sequence[tuple[Sequence[int], Sequence[int]]], perturbation: int | None = None
    ) -> list[np.ndarray]:
        """Log-probabilities (float32, nats, at the sampling temperature) of each (prompt, completion)'s completion."""
        batch = scoring_batch(sequences)
        scores = [np.empty(0, dtype=np.float32) for _ in sequences]
        members = np.flatnonzero(batch.completion_lengths)
        with torch.no_grad(), self._perturbed(perturbation):
            for micro in self._micro_batches(batch, members):
                logprobs_BT = self._score(self._policy, micro).cpu().numpy()
                for row, member in enumerate(micro.members_B):
                    scores[member] = logprobs_BT[row, : batch.completion_lengths[member]]
        return scores

    def write_snapshot(self, path: str, version: int, perturbation: int | None = None) -> Snapshot:
        """Write the policy as a safetensors file that appears at `path` complete.

        With `perturbation`, the weights written are those that `score` uses for the same seed.
        Raises LearnerError if the learner has another version, or the file system too little room.
        """
        if perturbation is None and version != self.version:
            raise LearnerError(f"a snapshot of version {version} was asked of a learner at version {self.version}")
        started = time.perf_counter()
        with self._perturbed(perturbation):
            tensors = export_tensors(self._loaded.model)
            size = write_safetensors(path, tensors, export_dtype(self.config), {"format": "pt"})
        return Snapshot(version=version, path=path, bytes=size, seconds=time.perf_counter() - started)

    @contextlib.contextmanager
    def exported(self, perturbation: int | None = None) -> Iterator[dict[str, Tensor]]:
        """The policy in memory, for transports without files: checkpoint names to tensors of the engines' type."""
        dtype = export_dtype(self.config)
        with self._perturbed(perturbation):
            tensors = export_tensors(self._loaded.model)
            yield {name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}

    def save_model(self, directory: str) -> None:
        """Save the model in Hugging Face format, adapters merged. The tokenizer is the orchestrator's to save."""
        self._loaded.model.save_pretrained(directory, state_dict=dict(merged_state(self._loaded.model)))

    def _micro_batches(self, batch: Batch, members: np.ndarray) -> list[MicroBatch]:
        return micro_batches(batch, members, self.config.learner.token_budget, self._loaded.packing, self._device)

    def _wrap(self, model: torch.nn.Module) -> Policy:
        return Policy(model, self.config.generation.temperature, use_bf16=self.config.training.bf16)

    def _across_ranks(self) -> Accelerator:
        # Mixed precision is the policy's own: accelerate would allow only one setting per process.
        ddp = DistributedDataParallelKwargs(broadcast_buffers=False, gradient_as_bucket_view=True)
        return Accelerator(cpu=self._device.type == "cpu", mixed_precision="no", kwargs_handlers=[ddp])

    def _without_exchange(self) -> contextlib.AbstractContextManager[None]:
        """Gradients stay on their rank."""
        return self._accelerator.no_sync(self._distributed) if self._accelerator else contextlib.nullcontext()

    def _perturbed(self, seed: int | None) -> contextlib.AbstractContextManager[None]:
        if seed is None:
            return contextlib.nullcontext()
        return perturbed(self._loaded.model, self._loaded.model.get_output_embeddings(), seed)

    @torch.no_grad()
    def _prepare(self, minibatches: Sequence[Sequence[MicroBatch]], *, is_single_update: bool) -> None:
        """Proximal and reference log-probabilities, in the same micro-batches that training uses: layout and kernels
        are then the same too, and the first ratio is 1 to the last bit."""
        micros = [micro for minibatch in minibatches for micro in minibatch]
        if not is_single_update:
            for micro in micros:
                micro.proximal_BT = self._score(self._policy, micro)
        if self.config.objective.beta:
            with self._loaded.reference() as model:
                reference = self._policy if model is self._loaded.model else self._wrap(model)
                for micro in micros:
                    micro.reference_BT = self._score(reference, micro)

    def _score(self, policy: Policy, micro: MicroBatch) -> Tensor:
        logprobs_N, _ = policy(*micro.inputs)
        return micro.padded(logprobs_N)

    def _update(
        self, minibatch: Sequence[MicroBatch], denominators: Denominators, index: int, watch: Stopwatch
    ) -> Update:
        with watch.part("forward_backward"):
            set_lora_dropout(self._policy, True)
            counts = Counts.zero(self._device)
            for number, micro in enumerate(minibatch, start=1):
                # Gradients are exchanged once, in the last backward pass; ranks may have different numbers of them.
                is_last = number == len(minibatch)
                with contextlib.nullcontext() if is_last else self._without_exchange():
                    counts.add(self._backward(micro, denominators))
            set_lora_dropout(self._policy, False)
        with watch.part("optimiser"):
            norm = float(clip_grad_norm_(self._parameters, self.config.training.max_grad_norm))
            self._check_finite(counts.total("loss"), norm, index)
            self._optimiser.step()
            self._schedule.step()
            self._optimiser.zero_grad(set_to_none=True)
        return Update(counts=counts, grad_norm=norm)

    def _backward(self, micro: MicroBatch, denominators: Denominators) -> Counts:
        logprobs_N, entropy_N = self._distributed(*micro.inputs)
        current_BT = micro.padded(logprobs_N)
        tokens = Tokens(
            current_BT=current_BT,
            # Anchor `first_pass`: with a single update, this forward pass is itself under θ_v.
            proximal_BT=current_BT.detach() if micro.proximal_BT is None else micro.proximal_BT,
            behaviour_BT=micro.behaviour_BT,
            reference_BT=micro.reference_BT,
            entropy_BT=micro.padded(entropy_N),
            mask_BT=micro.mask_BT,
            advantages_B=micro.advantages_B,
        )
        loss, counts = self._objective(tokens, denominators)
        # DDP averages over ranks, but denominators already count all of them: the sum is wanted. Not accelerate's
        # backward: it would divide by the accumulation steps of `accelerate launch`.
        torch.autograd.backward(loss * self.world_size)
        return counts

    def _check_finite(self, loss: float, norm: float, index: int) -> None:
        if math.isfinite(loss) and math.isfinite(norm):
            return
        self._optimiser.zero_grad(set_to_none=True)
        raise LearnerError(
            f"step {self.version}, update {index + 1}: loss is {loss}, gradient norm is {norm}; lower "
            "training.learning_rate, and look for log-probabilities that are not finite in rollouts"
        )
