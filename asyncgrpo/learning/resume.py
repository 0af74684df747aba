"""Between a rank that trains and its checkpoint: what is saved of it, and how it goes on from there."""

from __future__ import annotations

import torch
from torch.nn import Parameter

from asyncgrpo.config import RunConfig
from asyncgrpo.errors import LearnerError
from asyncgrpo.learning import checkpoint
from asyncgrpo.learning.checkpoint import Facts
from asyncgrpo.learning.model import LoadedModel
from asyncgrpo.learning.optimiser import continue_schedule
from asyncgrpo.learning.random_state import reseed
from asyncgrpo.learning.updates import Updates
from asyncgrpo.types import Resumed


class Resumable:
    """One rank's model and optimiser, as far as a checkpoint is concerned."""

    def __init__(
        self, loaded: LoadedModel, updates: Updates, config: RunConfig, device: torch.device, rank: int, world_size: int
    ) -> None:
        self._loaded, self._updates, self._config, self._device = loaded, updates, config, device
        self._rank, self._world_size = rank, world_size

    def save(self, directory: str, version: int) -> int:
        """Write this rank's files; returns their bytes. See `checkpoint.save`."""
        facts = self._facts(version)
        return checkpoint.save(directory, facts, self._parameters(), self._updates.optimiser, self._device, self._rank)

    def load(self, directory: str, version: int | None) -> Resumed:
        """Take over a checkpoint, of `version` if one is given. See `checkpoint.load`."""
        facts = checkpoint.read_facts(directory)
        self._check(directory, facts, version)
        keeps_generators = facts.world_size == self._world_size
        own = self._rank if keeps_generators else None
        checkpoint.load(directory, facts, self._parameters(), self._updates.optimiser, self._device, own)
        continue_schedule(self._updates.schedule, facts.updates)
        self._updates.skipped_in_a_row = facts.skipped_in_a_row
        remarks = []
        if not keeps_generators:
            reseed(self._config.run.seed, facts.version, self._world_size, self._rank)
            remarks.append(
                f"random generators are seeded anew: {facts.world_size} ranks saved, {self._world_size} go on"
            )
        if (rate := self._updates.learning_rate) != facts.learning_rate:
            remarks.append(
                f"the next update's learning rate is {rate:g} where the run that saved would have had "
                f"{facts.learning_rate:g}: training.learning_rate, its schedule or the length of the run has changed"
            )
        return Resumed(version=facts.version, updates=facts.updates, remarks=tuple(remarks))

    def _facts(self, version: int) -> Facts:
        lora = self._config.lora
        return Facts(
            version=version,
            updates=int(self._updates.schedule.last_epoch),  # a skipped update does not move it
            skipped_in_a_row=self._updates.skipped_in_a_row,
            world_size=self._world_size,
            learning_rate=self._updates.learning_rate,
            lora_alpha=lora.lora_alpha if lora.lora_r else None,
            origin=self._loaded.origin(),
        )

    def _check(self, directory: str, facts: Facts, version: int | None) -> None:
        if version is not None and facts.version != version:
            raise LearnerError(f"{directory} holds version {facts.version} of the learner, not {version}")
        ours = self._facts(facts.version)
        if facts.lora_alpha != ours.lora_alpha:
            raise LearnerError(
                f"{directory} was saved with lora.lora_alpha={facts.lora_alpha} (None: without adapters), now it is "
                f"{ours.lora_alpha}: the same adapters would be another policy; resume with the lora.* that saved it"
            )
        if facts.origin and ours.origin and facts.origin != ours.origin:
            raise LearnerError(
                f"{directory} was trained from other initial weights than those of model.path="
                f"{self._config.model.path!r} (adapters sit on them, or the KL term refers to them); resume with the "
                "model it started from"
            )

    def _parameters(self) -> dict[str, Parameter]:
        named = self._loaded.model.named_parameters()  # one that is shared comes once
        return {name: parameter for name, parameter in named if parameter.requires_grad}
