"""The optimiser updates of one step: anchor, statistics, backward passes and AdamW for each minibatch.

    for each pass over the step (num_iterations)
      for each minibatch
        statistics   forward without gradient, only where the objective needs numbers of the whole optimiser batch
        backward     forward and backward per micro-batch; gradients add up, ranks exchange them once. Groups in which
                     every advantage is 0 are computed forward only, for metrics
        optimiser    clip by norm, AdamW, learning rate

Where π_old comes from (`objective.proximal_anchor`): `recompute` is the policy at the step's start. For the first
minibatch that is what its own first forward pass computes anyway, so only the others cost one more. `first_pass` takes
every minibatch's own first forward pass, `behaviour` and `interpolate` need none at all. With dropout before adapters
both kinds of pass are made apart, without it. An importance baseline (replayed_baseline.py) needs the anchor of
replayed samples before the first update: one pass more over those of the first minibatch.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from accelerate import Accelerator, DistributedDataParallelKwargs
from torch import Tensor
from torch.nn.utils import clip_grad_norm_
from transformers import PreTrainedModel

from asyncgrpo.config import RunConfig
from asyncgrpo.errors import UpdatesNotFinite
from asyncgrpo.learning.lora import lora_dropout
from asyncgrpo.learning.microbatch import MicroBatch
from asyncgrpo.learning.model import LoadedModel
from asyncgrpo.learning.objectives.anchor import interpolate
from asyncgrpo.learning.objectives.build import build_objective
from asyncgrpo.learning.objectives.metrics import Counts
from asyncgrpo.learning.objectives.statistics import Statistics
from asyncgrpo.learning.objectives.tokens import Tokens
from asyncgrpo.learning.optimiser import build_optimiser, build_schedule
from asyncgrpo.learning.policy import Policy
from asyncgrpo.learning.ranks import any_over_ranks, gather_over_ranks, sum_over_ranks
from asyncgrpo.learning.replayed_baseline import shift_replayed, shifts_baseline
from asyncgrpo.learning.report import Stopwatch, Update
from asyncgrpo.types import Batch, SkippedUpdate

MOST_STALENESS_VALUES = 33
"""Metrics are kept apart for this many values of staleness; the last one counts all above it too."""


class Updates:
    """Policy, objective and optimiser of one rank.

    Raises ConfigError for a schedule that needs an unknown length.
    """

    def __init__(self, loaded: LoadedModel, config: RunConfig, device: torch.device, world_size: int) -> None:
        self._loaded, self._config, self._device, self._world_size = loaded, config, device, world_size
        self.policy = self._wrap(loaded.model)
        self._staleness_values = min(_oldest_trained(config) + 1, MOST_STALENESS_VALUES)
        self._objective = build_objective(config.objective, self._staleness_values)
        self._parameters = [parameter for parameter in self.policy.parameters() if parameter.requires_grad]
        self.optimiser = build_optimiser(self._parameters, config.training)
        self.schedule = build_schedule(self.optimiser, config.training)
        # Not for one rank: accelerate would join whatever process group the environment names.
        self._accelerator = self._across_ranks() if world_size > 1 else None
        self._distributed = self._accelerator.prepare_model(self.policy) if self._accelerator else self.policy
        self.skipped_in_a_row = 0
        """Updates skipped since the last one that was made."""
        # Dropout is on in backward passes only: neither anchors nor statistics should have it.
        self._is_noisy = config.lora.lora_r > 0 and config.lora.lora_dropout > 0

    @property
    def learning_rate(self) -> float:
        """Of the next update."""
        return float(self.schedule.get_last_lr()[0])

    def step(
        self, batch: Batch, minibatches: Mapping[int, Sequence[MicroBatch]], watch: Stopwatch
    ) -> tuple[list[Update], list[SkippedUpdate]]:
        """All updates of a step, over the `minibatches` of this rank's `batch` that any rank trains a token of.

        Those whose loss or gradient is not finite are skipped, on every rank alike: they leave weights, optimiser and
        schedule as they are, and later passes leave their minibatch out. Raises LearnerError if more than
        `training.max_skipped_updates` in a row are.

        Args:
            minibatches: By number.
        """
        with watch.part("proximal"):
            self._prepare(batch, list(minibatches.values()))
        updates: list[Update] = []
        skipped: list[SkippedUpdate] = []
        bad: dict[int, SkippedUpdate] = {}
        for _ in range(self._config.training.num_iterations):
            for number, minibatch in minibatches.items():
                place = len(updates) + len(skipped) + 1
                if number in bad:  # it was not finite in an earlier pass: not one more in a row, but the same one
                    skipped.append(replace(bad[number], update=place))
                    continue
                update = self._update(minibatch, len(updates), watch)
                if update.is_finite:
                    updates.append(update)
                    self.skipped_in_a_row = 0
                else:
                    bad[number] = self._skip(update, place, number)
                    skipped.append(bad[number])
        return updates, skipped

    @torch.no_grad()
    def _prepare(self, batch: Batch, minibatches: Sequence[Sequence[MicroBatch]]) -> None:
        """Proximal and reference log-probabilities, in the same micro-batches that training uses: layout and kernels
        are then the same too, and the first ratio is 1 to the last bit."""
        for minibatch in self._to_recompute(minibatches):
            self._anchor_at_current(minibatch)
        if shifts_baseline(self._config):
            micros = [micro for minibatch in minibatches for micro in minibatch]
            self._anchor_at_current([micro for micro in micros if batch.uses[micro.members_B].any()])
            shift_replayed(batch, micros, self._device)
        if self._config.objective.beta:
            with self._loaded.reference() as model:
                reference = self.policy if model is self._loaded.model else self._wrap(model)
                for micro in (micro for minibatch in minibatches for micro in minibatch):
                    micro.reference_BT, _ = reference.grids(micro)

    def _to_recompute(self, minibatches: Sequence[Sequence[MicroBatch]]) -> Sequence[Sequence[MicroBatch]]:
        if self._config.objective.proximal_anchor != "recompute":
            return ()
        return minibatches if self._is_noisy else minibatches[1:]

    @torch.no_grad()
    def _anchor_at_current(self, minibatch: Sequence[MicroBatch]) -> None:
        """Take the current policy as the anchor of what has none yet."""
        for micro in minibatch:
            if micro.proximal_BT is None:
                micro.proximal_BT, _ = self.policy.grids(micro)

    def _update(self, minibatch: Sequence[MicroBatch], done: int, watch: Stopwatch) -> Update:
        learning_rate = self.learning_rate
        if self._is_noisy and self._config.objective.proximal_anchor == "first_pass":
            with watch.part("proximal"):
                self._anchor_at_current(minibatch)
        statistics = None
        if self._objective.needs_statistics:
            with watch.part("statistics"):
                statistics = self._statistics(minibatch, done)
        with watch.part("forward_backward"):
            counts = Counts.zero(self._staleness_values, self._device)
            with lora_dropout(self.policy):
                for number, micro in enumerate(minibatch, start=1):
                    # Gradients are exchanged once, in the last backward pass; ranks may have different numbers of them.
                    is_last = number == len(minibatch)
                    with contextlib.nullcontext() if is_last else self._without_exchange():
                        run = self._backward if micro.has_gradient else self._count
                        counts.add(run(micro, done, statistics))
        with watch.part("optimiser"):
            norm = float(clip_grad_norm_(self._parameters, self._config.training.max_grad_norm))
            # The norm is the same on every rank, the loss is each one's own: all must agree to go on.
            is_finite = math.isfinite(counts.total("loss")) and math.isfinite(norm)
            is_finite = not any_over_ranks(not is_finite, self._device)
            if is_finite:
                self.optimiser.step()
                self.schedule.step()
            self.optimiser.zero_grad(set_to_none=True)
        return Update(counts=counts, grad_norm=norm, learning_rate=learning_rate, is_finite=is_finite)

    def _skip(self, update: Update, number: int, minibatch: int) -> SkippedUpdate:
        """Count an update that was not made. Raises UpdatesNotFinite if that is one too many."""
        loss = sum_over_ranks(update.counts.total("loss"), self._device)  # the first rank to fail is the one heard
        most = self._config.training.max_skipped_updates
        if self.skipped_in_a_row >= most:
            in_a_row = f" ({most + 1} updates in a row; training.max_skipped_updates={most})" if most else ""
            raise UpdatesNotFinite(
                f"update {number}: loss is {loss}, gradient norm is {update.grad_norm}{in_a_row}; lower "
                "training.learning_rate, and look for log-probabilities that are not finite in rollouts"
            )
        self.skipped_in_a_row += 1
        return SkippedUpdate(update=number, minibatch=minibatch, loss=loss, gradient_norm=update.grad_norm)

    @torch.no_grad()
    def _statistics(self, minibatch: Sequence[MicroBatch], done: int) -> Statistics:
        """Of the optimiser batch over all ranks, under the policy about to be updated."""
        observed: dict[str, list[Tensor]] = {}
        for micro in minibatch:
            for name, values_N in self._objective.observe(self._tokens(micro, *self.policy.grids(micro), done)).items():
                observed.setdefault(name, []).append(values_N)
        return self._objective.summarise({name: gather_over_ranks(torch.cat(observed[name])) for name in observed})

    def _backward(self, micro: MicroBatch, done: int, statistics: Statistics | None) -> Counts:
        logprobs_N, entropy_N = self._distributed(*micro.inputs)
        tokens = self._tokens(micro, micro.padded(logprobs_N), micro.padded(entropy_N), done)
        loss, counts = self._objective(tokens, statistics)
        # DDP averages over ranks, but token weights already count all of them: the sum is wanted. Not accelerate's
        # backward: it would divide by the accumulation steps of `accelerate launch`.
        torch.autograd.backward(loss * self._world_size)
        return counts

    @torch.no_grad()
    def _count(self, micro: MicroBatch, done: int, statistics: Statistics | None) -> Counts:
        _, counts = self._objective(self._tokens(micro, *self.policy.grids(micro), done), statistics)
        return counts

    def _tokens(self, micro: MicroBatch, current_BT: Tensor, entropy_BT: Tensor, done: int) -> Tokens:
        return Tokens(
            current_BT=current_BT,
            proximal_BT=self._anchor(micro, current_BT, done),
            behaviour_BT=micro.behaviour_BT,
            reference_BT=micro.reference_BT,
            entropy_BT=entropy_BT,
            mask_BT=micro.mask_BT,
            advantages_B=micro.advantages_B,
            token_weights_B=micro.token_weights_B,
            staleness_BT=micro.staleness_BT,
        )

    def _anchor(self, micro: MicroBatch, current_BT: Tensor, done: int) -> Tensor:
        training = self._config.training
        match self._config.objective.proximal_anchor:
            case "behaviour":
                return micro.behaviour_BT
            case "interpolate":
                per_step = training.num_iterations * training.num_minibatches
                return interpolate(current_BT, micro.behaviour_BT, micro.staleness_BT, done, per_step)
            case "recompute" | "first_pass":
                if micro.proximal_BT is None:
                    micro.proximal_BT = current_BT.detach()
                return micro.proximal_BT

    def _wrap(self, model: PreTrainedModel) -> Policy:
        return Policy(
            model,
            self._config.generation.temperature,
            use_bf16=self._config.training.bf16,
            use_fp32_head=self._config.training.cast_lm_head_to_fp32,
            entropy_gradient=self._config.objective.entropy_coef > 0,
        )

    def _across_ranks(self) -> Accelerator:
        # Mixed precision is the policy's own: accelerate would allow only one setting per process.
        ddp = DistributedDataParallelKwargs(broadcast_buffers=False, gradient_as_bucket_view=True)
        return Accelerator(cpu=self._device.type == "cpu", mixed_precision="no", kwargs_handlers=[ddp])

    def _without_exchange(self) -> contextlib.AbstractContextManager[None]:
        """Gradients stay on their rank."""
        return self._accelerator.no_sync(self._distributed) if self._accelerator else contextlib.nullcontext()


def _oldest_trained(config: RunConfig) -> int:
    """Largest staleness that a trained token may have, replayed ones included."""
    replayed = config.replay.replay_max_age if config.replay.replay_fraction else 0
    return max(config.buffer.max_staleness, replayed)
