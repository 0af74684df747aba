"""The bit policy as a kind: a run is one seed, but seeds are computed many at once, since that costs hardly more.

Whoever is first to need one of a block of seeds computes the block; the others find their curves beside the runs, in
`together/`. A curve's `seconds` are its share of the block's.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from asyncgrpo.ablation.design.arms import Run
from asyncgrpo.ablation.design.content import content_key
from asyncgrpo.ablation.design.values import get
from asyncgrpo.ablation.exclusive import alone
from asyncgrpo.ablation.kinds.bit_policy import BitPolicies, BitStep
from asyncgrpo.ablation.kinds.checks import check_bits
from asyncgrpo.learning.objectives.metrics import Counts, reduce_counts
from asyncgrpo.observe.files import write_text
from asyncgrpo.observe.metrics import REPORTED_AS

OnStep = Callable[[dict[str, Any]], None]
Record = dict[str, Any]


def run(run: Run, folder: Path, on_step: OnStep) -> None:
    """One run of a study; see `kinds`. Raises ConfigError for settings that a bit policy does not have."""
    check_bits(run.config(), run.budget)
    first = run.seed - run.seed % run.own().seeds_together
    block = replace(run, key="", seed=first).with_settings({"run.seed": first})
    curves = folder.parent.parent / "together" / content_key(block)
    with alone(curves):
        if not (curves / _name(run.seed)).is_file():
            curves.mkdir(parents=True, exist_ok=True)
            for offset, records in enumerate(compute(block)):
                write_text(curves / _name(first + offset), json.dumps(records))
    for record in json.loads((curves / _name(run.seed)).read_text(encoding="utf-8")):
        on_step(record)


def compute(block: Run) -> list[list[Record]]:
    """The records of every seed of a block; `block` is a run of its first."""
    section, config = block.own(), block.config()
    seeds = range(block.seed, block.seed + section.seeds_together)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        policies = BitPolicies(config, section, seeds, block.stream)
        curves: list[list[Record]] = [[] for _ in seeds]
        begun = time.perf_counter()
        done: BitStep | None = None
        while not curves[0] or not block.budget.is_spent(curves[0][-1]):
            if curves[0]:
                done = policies.step(counted=_is_due(block, policies.version + 1))
            _record(curves, policies, done, block, (time.perf_counter() - begun) / len(seeds))
    finally:
        torch.set_num_threads(threads)
    return curves


def _record(
    curves: list[list[Record]], policies: BitPolicies, done: BitStep | None, block: Run, seconds: float
) -> None:
    """One more of every seed. Metrics come with evaluations only: there are more steps than anybody looks at."""
    shared = {**_reached(block, policies.version), "seconds": seconds}
    is_due = _is_due(block, policies.version)
    scores_S = policies.scores_S() if is_due else None
    for place, curve in enumerate(curves):
        record: Record = {**shared, "reward": None if done is None else float(done.rewards_S[place])}
        record["score"] = None if scores_S is None else float(scores_S[place])
        if done is not None and is_due:
            record |= {"gradient_norm": float(done.gradient_norm_S[place]), **_metrics(done.counts, place)}
        curve.append(record)


def _reached(block: Run, version: int) -> dict[str, float]:
    samples = version * int(get(block.values, "generation.num_generations"))
    return {"step": version, "tokens": samples * block.own().bits, "samples": samples}


def _is_due(block: Run, version: int) -> bool:
    return version % block.evaluate_every == 0 or block.budget.is_spent(_reached(block, version))


def _metrics(counts: Counts, seed: int) -> dict[str, float]:
    own = Counts(counts.sums_DK[seed : seed + 1], counts.maxima_DM[seed : seed + 1])
    found = reduce_counts(own, has_reference=False)
    named = {REPORTED_AS[name]: value for name, value in found.items() if name in REPORTED_AS and name != "entropy"}
    return named


def _name(seed: int) -> str:
    return f"{seed}.json"
