"""What the orchestrator itself costs, between engines that send canned answers and a learner that does nothing.

    python scripts/benchmarks/orchestrator.py            # about five minutes
    python scripts/benchmarks/orchestrator.py --quick    # two minutes; memory over fewer samples

Engines are other processes (canned_engine.py) on the other cores; the orchestrator has one core to itself, as far as
nothing else runs on it. Counted are HTTP, parsing, tokenizer, a trivial reward function, buffer, batches, step records
and the control calls of publishes; rollout files only with --save-rollouts. Completions have 512 tokens, groups 8
samples.

Three tables: how much goes through when engines answer at once; how late the event loop is when they answer at a steady
--rate (at once, thousands of answers would be there at the same moment, and wait for each other); and what a sample
costs with 64 to 4,096 requests in flight, in steps of equal size. Costs are CPU time of all threads of the orchestrator
(one core's completions per second follow from it), which another load of the machine disturbs less than wall-clock; the
yardstick, CPU time to parse one answer, tells how fast the machine was meanwhile, and the last column divides by it.
Engines that are busy for less than their cores did not hold the orchestrator up. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shared import Figures, cores, print_figures, print_table, run_child, versions

IN_FLIGHT = (64, 256, 1024, 4096)
GENERATIONS = 8
LARGE_STEP = 64
"""Groups per step, as a large run has them."""
STEADY_SHARE = 0.75
"""Of what goes through at once."""
QUICK, FULL = (8_000, 16_000), (20_000, 100_000)
"""Samples of every measurement, and of the one at a steady rate."""
QUICK_SECONDS, FULL_SECONDS = 20.0, 150.0
"""After which a measurement ends with fewer."""
Measure = Callable[..., Figures]


def measure(**load: Any) -> Figures:
    rate = f" at {load['rate']:.0f}/s" if "rate" in load else ""
    print(f"{load['samples']:,} samples{rate}, {load['in_flight']:,} in flight …", file=sys.stderr, flush=True)
    return run_child("orchestrator_side.py", json.dumps(load), threads=1)


def main(measure: Measure = measure, arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    core = max(os.sched_getaffinity(0)) if cores() > 1 else None
    few, many = (options.samples,) * 2 if options.samples else QUICK if options.quick else FULL
    seconds = QUICK_SECONDS if options.quick else FULL_SECONDS
    common: dict[str, Any] = {"core": core, "save_rollouts": options.save_rollouts, "seconds": seconds}
    in_flight = sorted(options.in_flight)
    most: dict[str, Any] = {"in_flight": in_flight[-1], **common}
    most["groups_per_step"] = min(LARGE_STEP, in_flight[-1] // GENERATIONS)
    fastest = measure(samples=few, **most)
    print_runs("Answered at once", [fastest])
    rate = options.rate or STEADY_SHARE * fastest["completions_per_second"]
    steady = measure(samples=many, rate=rate, **most)
    print_runs(f"Answered at {rate:.0f} completions per second", [steady])
    equal = in_flight[0] // GENERATIONS  # the most that the fewest requests allow
    scaling = [measure(in_flight=n, samples=few, groups_per_step=equal, **common) for n in in_flight]
    print_runs("By requests in flight", scaling)
    print_figures(
        {
            "completions_per_second": fastest["completions_per_second"],
            "completions_per_core_second": 1.0 / fastest["cpu_seconds_per_sample"],
            "steady_completions_per_second": steady["completions_per_second"],
            "loop_delay_p99_seconds": steady["loop_delay_p99_seconds"],
            "rss_growth_mib": steady["rss_growth_mib"],
            "samples": steady["samples"],
            "cpu_seconds_per_sample": {run["in_flight"]: run["cpu_seconds_per_sample"] for run in scaling},
            "yardsticks_per_sample": {run["in_flight"]: yardsticks(run) for run in scaling},
            "yardstick_seconds": fastest["yardstick_seconds"],
            "versions": versions(),
        }
    )


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rate", type=float, help=f"of the second table; {STEADY_SHARE} of the first one's, if absent")
    parser.add_argument("--samples", type=int, help="of every measurement")
    parser.add_argument(
        "--in-flight", type=int, nargs="+", default=IN_FLIGHT, metavar="REQUESTS", help="multiples of 8"
    )
    parser.add_argument("--save-rollouts", action="store_true")
    return parser.parse_args(arguments)


def yardsticks(run: Figures) -> float:
    """Cost of a sample, in answers that could have been parsed meanwhile."""
    return float(run["cpu_seconds_per_sample"] / run["yardstick_seconds"])


def print_runs(title: str, runs: Sequence[Mapping[str, Any]]) -> None:
    columns = [
        "in flight",
        "samples",
        "per second",
        "core",
        "engines",
        "µs/sample",
        "delay p50",
        "p99",
        "max",
    ]
    rows = [
        [
            f"{run['in_flight']:,}",
            f"{run['samples']:,}",
            f"{run['completions_per_second']:,.0f}",
            f"{100 * run['core_ratio']:.0f} %",
            f"{100 * run['engines_core_ratio']:.0f} %",
            f"{1e6 * run['cpu_seconds_per_sample']:.0f}",
            *(f"{1e3 * run[f'loop_delay_{part}_seconds']:.1f} ms" for part in ("p50", "p99", "max")),
            f"{run['rss_growth_mib']:+.0f} MiB",
            f"{1e6 * run['yardstick_seconds']:.0f} µs",
            f"{yardsticks(run):.2f}",
        ]
        for run in runs
    ]
    print_table(title, [*columns, "memory", "yardstick", "ratio"], rows)


if __name__ == "__main__":
    main()
