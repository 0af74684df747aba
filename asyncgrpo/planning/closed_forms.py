"""Step times, staleness and splits in closed form. Seconds, tokens, versions; all are means in a steady state.

T_gen is the time that the engines need for one step's groups while they are kept busy, T_train what the learner is
busy with one step (training, snapshot, work between steps), T_batch the time from starting one step's groups together
until the last is there. They hold for any number of devices; which number is what `best_split` answers.

Sources: the bounds of an asynchronous pipeline are max-plus algebra (each resource is busy once per step, and a slot
goes round once in S + 1 steps); mean staleness is Little's law, in the form of Applied Compute, "Staleness in fully
asynchronous RL" (2026); limits of the speed-up over colocated training are this project's own derivation.
"""

from __future__ import annotations

from dataclasses import dataclass

from asyncgrpo.planning.model import RunModel

__all__ = [
    "StepTimes",
    "best_split",
    "colocated_speedup_limit",
    "mean_staleness",
    "staleness_of_a_queue",
    "step_times",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Seconds per step of the ways to arrange one and the same work."""

    generation: float
    """T_gen."""
    training: float
    """T_train."""
    batch: float
    """T_batch."""
    publish: float
    synchronous: float
    """On the same split: T_batch + T_train + publish, one after the other."""
    one_step_off: float
    """The next batch is generated while this one is trained; a batch is waited for as a whole."""
    asynchronous: float
    """max(T_gen, T_train, snapshot + publish, (slowest group + T_train + publish) / (S + 1)): a lower bound."""

    @property
    def balance(self) -> float:
        """rho = T_train / T_gen: above 1 generation is the faster side."""
        return self.training / self.generation

    @property
    def limit(self) -> float:
        """Of any arrangement on this split: the busier side."""
        return max(self.generation, self.training)


def step_times(model: RunModel) -> StepTimes:
    """Of a model whose engines all work, each with an equal share of the requests."""
    engines, policy = model.engines, model.policy
    samples = policy.groups_per_step * model.lengths.samples
    in_flight = policy.unfinished_limit * model.lengths.samples / engines.count
    open_requests = min(in_flight, engines.max_requests or in_flight)
    busy_rate = engines.tokens_per_second(max(1.0, open_requests))
    generation = model.tokens_per_step / (busy_rate * engines.count)
    # A pause costs each engine its time once per publish.
    generation += engines.pause_seconds / policy.publish_interval
    training = (
        model.learner.training_seconds(model.tokens_per_step)
        + model.learner.overhead_seconds
        + model.learner.snapshot_seconds / policy.publish_interval
        + (engines.publish_seconds / policy.publish_interval if model.learner.holds_learner else 0.0)
    )
    batch = _batch_seconds(model, samples / engines.count, policy.groups_per_step)
    slowest = batch if policy.max_staleness == 0 else _batch_seconds(model, in_flight, policy.groups_per_step)
    publish = engines.publish_seconds
    # A snapshot waits until the version before it has reached every engine.
    publishing = (model.learner.snapshot_seconds + publish) / policy.publish_interval
    slots = (slowest + training + publish) / (policy.max_staleness + 1)
    return StepTimes(
        generation=generation,
        training=training,
        batch=batch,
        publish=publish,
        synchronous=batch + training + publish,
        one_step_off=max(batch, training) + publish,
        asynchronous=max(generation, training, publishing, slots),
    )


def _batch_seconds(model: RunModel, requests_per_engine: float, groups: int) -> float:
    """From the start of `groups` groups, with so many requests on each engine, until the last is scored.

    The longest sample of all, at the pace of the full engine until its fellows end and then alone: the mean of both
    paces, weighed by how long each lasts; or, on engines with a queue, the work of the whole batch.
    """
    engines, lengths = model.engines, model.lengths
    running = max(1.0, min(requests_per_engine, engines.max_num_seqs))
    longest = lengths.longest_of(groups)
    crowded = min(longest, lengths.mean) * engines.step_seconds(running)
    thinned = max(0.0, longest - lengths.mean) * engines.step_seconds(max(1.0, running / 4))
    work = requests_per_engine * lengths.mean / engines.tokens_per_second(running)
    return engines.request_seconds + max(crowded + thinned, work) + model.reward_seconds


def best_split(generation: float, training: float, devices: int) -> tuple[int, int]:
    """Devices for engines and for the learner. generation, training: device-seconds of work per step.

    Both sides scale with their devices, so step time is max(generation / n, training / (devices - n)), least where
    n / (devices - n) = generation / training; among whole numbers the better neighbour. Raises ValueError below 2
    devices: each side needs one.
    """
    if devices < 2:
        raise ValueError(f"{devices} devices cannot be split: engines need one, and so does the learner")
    ideal = devices * generation / (generation + training)
    candidates = {min(max(n, 1), devices - 1) for n in (int(ideal), int(ideal) + 1)}
    engines = min(candidates, key=lambda n: (max(generation / n, training / (devices - n)), n))
    return engines, devices - engines


def colocated_speedup_limit(generation: float, training: float, devices: int, idle_ratio: float) -> float:
    """Most that an asynchronous split can gain over colocated synchronous training on the same devices.

    Colocated, all devices do both in turn: (generation + training) / devices seconds, and idle for `idle_ratio` of
    the step, while stragglers end and weights move. Asynchrony can fill that, and loses what whole numbers cost.
    """
    together = (generation + training) / devices / (1.0 - idle_ratio)
    engines, learner = best_split(generation, training, devices)
    return together / max(generation / engines, training / learner)


def mean_staleness(unfinished: float, groups_per_step: int, publish_steps: float = 0.0) -> float:
    """Mean staleness of samples' oldest tokens, by Little's law: time from admission to training, in steps.

    unfinished: mean number of groups in flight or buffered. publish_steps: by how much of a step the version that
    engines serve at an admission is behind the learner's.
    """
    return unfinished / groups_per_step + publish_steps


def staleness_of_a_queue(
    in_flight: float, batch: float, tail: float, generation_rate: float, training_rate: float, queue: float
) -> float:
    """Mean staleness of a pipeline with a fixed number of samples in flight and a first-in-first-out queue.

    Applied Compute's closed forms: with rho = generation_rate / training_rate (samples per second),
    C·M/B + rho for rho < 1, and C·M/(rho·B) + (2q + rho - 1)/(2·rho) for rho >= 1.

    in_flight: C, samples. batch: B, samples of a step. tail: M, expected longest of a group over the mean length.
    queue: q, capacity of the queue in batches. Theirs is a queue; a run of this project has slots instead, which its
    own simulator follows.
    """
    rho = generation_rate / training_rate
    if rho < 1:
        return in_flight * tail / batch + rho
    return in_flight * tail / (rho * batch) + (2 * queue + rho - 1) / (2 * rho)
