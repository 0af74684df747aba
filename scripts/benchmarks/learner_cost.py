"""What a step of the learner costs, against trained tokens, vocabulary, and how much one pass takes. Without TRL.

    python scripts/benchmarks/learner_cost.py            # a few minutes
    python scripts/benchmarks/learner_cost.py --quick    # fewer and smaller points, once

The models are small, random and made for each vocabulary. Each sweep changes one thing:

    tokens       more groups of the same lengths. Cost should be linear: r2 near 1, and the cost of a token (the whole
                 step over its tokens) at the largest point no higher than at the smallest
    vocabulary   the same samples. Seconds are linear in it, since the output head is. Memory should grow by far less
                 than the float32 logits of all trained tokens do (logits_ratio well below 1): they never exist at once
    pass_size    the same samples, more tokens in one forward and backward pass (as many as so many samples have with
                 their own prompts and the longest completion): faster, and more memory

Seconds are medians over repeats, each in a process of its own. Memory is the peak of a step beyond weights, gradients
and optimiser state, as in learner_vs_trl.py. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from shared import Figures, Measure, Work, cores, measure, print_figures, print_table, versions

SIDE = "learner_asyncgrpo.py"
VOCABULARY = 8192
SWEEPS = {"tokens": (1, 2, 4, 8, 16), "vocabulary": (2048, 8192, 32768, 131072), "pass_size": (4, 8, 16, 32)}
QUICK_SWEEPS = {"tokens": (1, 2, 4), "vocabulary": (1024, 4096, 16384), "pass_size": (4, 8, 16)}
GROUPS = 4
"""Of a step where they are not what changes."""


def main(argv: Sequence[str] | None = None, measure: Measure = measure) -> int:
    arguments = parse(argv)
    sweeps, repeats = (QUICK_SWEEPS, 1) if arguments.quick else (SWEEPS, arguments.repeats)
    with tempfile.TemporaryDirectory() as folder:
        works = {name: make_works(name, values, arguments, Path(folder)) for name, values in sweeps.items()}
        points = {
            name: [point(value, work, repeats, measure) for value, work in zip(sweeps[name], works[name], strict=True)]
            for name in sweeps
        }
    figures = summary(points)
    print_points(figures)
    print_figures(figures | {"threads": arguments.threads, "repeats": repeats, "versions": versions()})
    return 0


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer and smaller points, one repeat")
    parser.add_argument("--repeats", type=int, default=3, help="processes per point (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=cores(), help="threads of torch (default: all, %(default)s)")
    parser.add_argument("--hidden", type=int, default=256, help="width of the model (default: %(default)s)")
    parser.add_argument("--layers", type=int, default=4, help="layers of the model (default: %(default)s)")
    parser.add_argument("--prompt", type=int, default=64, help="tokens of a prompt (default: %(default)s)")
    parser.add_argument("--completion", type=int, default=64, help="tokens of a completion (default: %(default)s)")
    return parser.parse_args(argv)


def make_works(name: str, values: Sequence[int], arguments: argparse.Namespace, folder: Path) -> list[Work]:
    """The points of one sweep; their models are written into `folder`."""
    base = Work(
        model="",
        prompt=arguments.prompt,
        completion=arguments.completion,
        groups=GROUPS,
        ragged=False,  # so that tokens are what the sweep says
        threads=arguments.threads,
        steps=3,
    )
    works = []
    for value in values:
        model = make_model(folder, arguments, value if name == "vocabulary" else VOCABULARY)
        change = {"tokens": {"groups": value}, "vocabulary": {}, "pass_size": {"micro_batch": value}}[name]
        works.append(replace(base, model=model, **change))
    return works


def make_model(folder: Path, arguments: argparse.Namespace, vocabulary: int) -> str:
    """A random Llama with tied embeddings; no tokenizer, since only token ids are trained."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from asyncgrpo.testing.tiny import quiet

    path = folder / str(vocabulary)
    if not path.exists():
        config = LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=arguments.hidden,
            intermediate_size=3 * arguments.hidden,
            num_hidden_layers=arguments.layers,
            num_attention_heads=4,
            num_key_value_heads=2,
            tie_word_embeddings=True,
        )
        with quiet():
            LlamaForCausalLM(config).save_pretrained(path)
    return str(path)


def point(value: int, work: Work, repeats: int, measure: Measure) -> Figures:
    runs = [measure(SIDE, work) for _ in range(repeats)]
    for run in runs:
        if "error" in run:
            return {"value": value, **run}
    return {
        "value": value,
        "seconds": statistics.median(second for run in runs for second in run["seconds"]),
        "tokens": runs[0]["tokens"],
        "peak_bytes": statistics.median(run["peak_bytes"] for run in runs),
    }


def summary(points: Mapping[str, Sequence[Figures]]) -> Figures:
    """Every sweep's points, and lines through seconds against tokens and against vocabulary."""
    figures: Figures = {name: {"points": list(sweep)} for name, sweep in points.items()}
    for name, unit in (("tokens", "tokens"), ("vocabulary", "value")):
        measured = [each for each in points[name] if "error" not in each]
        figures[name] |= fit([each[unit] for each in measured], [each["seconds"] for each in measured])
    return {
        "tokens_r2": figures["tokens"]["r2"],
        "token_cost_ratio": figures["tokens"]["cost_ratio"],
        "logits_ratio": logits_ratio(points["vocabulary"]),
        **figures,
    }


def logits_ratio(sweep: Sequence[Figures]) -> float | None:
    """Growth of memory from the first to the last vocabulary, over that of all tokens' float32 logits."""
    first, last = sweep[0], sweep[-1]
    if "error" in first or "error" in last:
        return None
    return (last["peak_bytes"] - first["peak_bytes"]) / (4 * last["tokens"] * (last["value"] - first["value"]))


def fit(x: Sequence[float], seconds: Sequence[float]) -> dict[str, float]:
    """Least squares seconds = intercept + slope * x, how much of the variance it explains, and the cost of one unit
    of x (seconds / x) at the largest x over that at the smallest. Raises ValueError for fewer than two points."""
    if len(x) < 2:
        raise ValueError(f"a line needs two points, not {len(x)}")
    slope, intercept = np.polyfit(x, seconds, 1)
    residuals = np.asarray(seconds) - (intercept + slope * np.asarray(x))
    spread = np.asarray(seconds) - np.mean(seconds)
    explained = 1.0 - float(residuals @ residuals) / float(spread @ spread) if spread.any() else 1.0
    costs = [second / unit for unit, second in sorted(zip(x, seconds, strict=True))]
    return {
        "seconds_per_unit": float(slope),
        "seconds_fixed": float(intercept),
        "r2": explained,
        "cost_ratio": costs[-1] / costs[0],
    }


def print_points(figures: Figures) -> None:
    rows = []
    for name in SWEEPS:
        for each in figures[name]["points"]:
            shown = ["-", "-", each["error"]] if "error" in each else _cells(each)
            rows.append([name, str(each["value"]), *shown])
    print_table("a step of the learner", ["sweep", "value", "seconds", "tokens/s", "GB beyond the model"], rows)
    print(
        f"seconds against tokens: r2 {figures['tokens_r2']:.4f}, a token costs {figures['token_cost_ratio']:.2f} times "
        f"as much at the most tokens as at the fewest; against vocabulary: r2 {figures['vocabulary']['r2']:.4f}"
    )


def _cells(each: Figures) -> list[str]:
    return [f"{each['seconds']:.3f}", f"{each['tokens'] / each['seconds']:.0f}", f"{each['peak_bytes'] / 1e9:.3f}"]


if __name__ == "__main__":
    sys.exit(main())
