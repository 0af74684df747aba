"""What does it cost to observe a run: counters, /metrics, the page, the timeline, logs, watchdog, rollout files?

    python scripts/benchmarks/observing.py            # about 40 minutes
    python scripts/benchmarks/observing.py --quick    # two minutes: shows that it works

The real orchestrator between engines that send canned answers (canned_run.py), 4,096 requests in flight, completions of
512 tokens, steps of 64 groups of 8 samples that take the learner one second. It is watched as runs are: /metrics is
scraped every second, and an open page asks every four. Each kind of observing is also measured alone, against none of
it; the order alternates from round to round, and ratios are medians of rounds. A run with larger models has longer
steps: what observing costs per sample stays, and its share shrinks.

    step_time_ratio           seconds of a step with all of it over those with none, as the learner sees them
    cpu_share_of_step         CPU seconds more per step, over the seconds of a step
    cpu_seconds_per_sample    of all threads of the orchestrator, by what is on
    rss_growth_mib_per_hour   resident memory that an hour of observing adds: as many scrapes, looks and samples of the
                              flow as an hour has, ten times as fast, and 360 steps; the growth with all of it less that
                              with none, from the median of the first quarter to that of the last

CPU time is the main measure: a machine that does other things disturbs it less than wall-clock; the yardstick (CPU time
to parse one answer) says how fast the machine was. Rollout files are in a column of their own: they are what a run is
for rather than how it is watched. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from observing_side import PARTS
from shared import Figures, cores, print_figures, print_table, run_child, versions

WATCHING = tuple(part for part in PARTS if part != "rollouts")
IN_FLIGHT, GROUPS, STEP_SECONDS = 4096, 64, 1.0
GENERATIONS = 8
ROUNDS, SECONDS = 3, 40.0
QUICK_SECONDS, QUICK_IN_FLIGHT = 15.0, 1024
HURRY, HOUR = 10.0, 360.0
QUARTERS = 4 / 3
"""Between the medians of two quarters lie three quarters of the time."""
Measure = Callable[[Mapping[str, Any]], Figures]


def measure(what: Mapping[str, Any]) -> Figures:
    print(f"{'+'.join(what['parts']) or 'nothing'}, {what['load']['seconds']:.0f} s …", file=sys.stderr, flush=True)
    return run_child("observing_side.py", json.dumps(what), threads=1)


def main(arguments: Sequence[str] | None = None, measure: Measure = measure) -> int:
    options = parse(arguments)
    variants = [(), WATCHING, PARTS] if options.quick else [(), *((part,) for part in PARTS), WATCHING, PARTS]
    rounds: list[dict[str, Figures]] = []
    for number in range(options.rounds):
        order = variants if number % 2 == 0 else variants[::-1]
        rounds.append({name_of(parts): measure(work(options, parts)) for parts in order})
    table = {name_of(parts): compared(rounds, name_of(parts)) for parts in variants}
    print_costs(table)
    grown = {} if options.no_memory else memory(measure, options)
    whole = table[name_of(WATCHING)]
    print_figures(
        {
            "step_time_ratio": whole["step_time_ratio"],
            "step_time_ratio_with_rollouts": table[name_of(PARTS)]["step_time_ratio"],
            "cpu_share_of_step": whole["cpu_share_of_step"],
            "cpu_share_of_step_with_rollouts": table[name_of(PARTS)]["cpu_share_of_step"],
            **grown,
            "cpu_seconds_per_sample": {name: each["cpu_seconds_per_sample"] for name, each in table.items()},
            "loop_delay_p99_seconds": {name: each["loop_delay_p99_seconds"] for name, each in table.items()},
            "in_flight": options.in_flight,
            "rounds": options.rounds,
            "versions": versions(),
        }
    )
    return 0


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--quick",
        action="store_true",
        help="one round of all, all but rollouts, and nothing; fewer requests, no memory",
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of one measurement")
    parser.add_argument("--in-flight", type=int, metavar="REQUESTS", help=f"a multiple of 8 ({IN_FLIGHT})")
    parser.add_argument("--groups", type=int, default=GROUPS, help="of a step")
    parser.add_argument("--hour", type=float, default=HOUR, metavar="SECONDS", help="in which an hour of looks is made")
    parser.add_argument("--no-memory", action="store_true")
    options = parser.parse_args(arguments)
    if options.quick:
        options.rounds, options.seconds, options.no_memory = 1, QUICK_SECONDS, True
    options.in_flight = options.in_flight or (QUICK_IN_FLIGHT if options.quick else IN_FLIGHT)
    return options


def work(
    options: argparse.Namespace, parts: Collection[str], *, seconds: float | None = None, hurry: float = 1.0
) -> Any:
    """Slots for what is in flight, in training, and about to be."""
    per_step = GENERATIONS * options.groups
    seconds = options.seconds if seconds is None else seconds
    load = {
        "in_flight": options.in_flight + 2 * per_step,
        "samples": int(1.5 * per_step * seconds / STEP_SECONDS),
        "groups_per_step": options.groups,
        "latency": options.in_flight / per_step * STEP_SECONDS,
        "learner_seconds": STEP_SECONDS,
        "core": max(os.sched_getaffinity(0)) if cores() > 1 else None,
        "save_rollouts": "rollouts" in parts,
        "seconds": seconds,
    }
    return {"parts": [*parts], "load": load, "hurry": hurry}


def memory(measure: Measure, options: argparse.Namespace) -> Figures:
    """MiB that resident memory grows by in an hour of looks; the second is how much of it is not for observing."""
    hurry = 3600.0 / options.hour
    found = {
        name: measure(work(options, parts, seconds=options.hour, hurry=hurry))
        for name, parts in (("without", ()), ("with", PARTS))
    }
    growth = {name: QUARTERS * each["rss_growth_mib"] for name, each in found.items()}
    rows = [
        [
            name,
            f"{each['steps']:,}",
            f"{growth[name]:+.1f} MiB",
            " ".join(f"{mib:.0f}" for mib in each["rss_tenths_mib"]),
        ]
        for name, each in found.items()
    ]
    print_table("Memory over an hour of looks", ["observing", "steps", "growth", "MiB, tenth by tenth"], rows)
    return {
        "rss_growth_mib_per_hour": growth["with"] - growth["without"],
        "rss_growth_mib_per_hour_without": growth["without"],
        "rss_tenths_mib": {name: each["rss_tenths_mib"] for name, each in found.items()},
    }


def name_of(parts: Sequence[str]) -> str:
    return {(): "nothing", WATCHING: "all but rollouts", PARTS: "all"}.get(tuple(parts), "+".join(parts))


def compared(rounds: Sequence[Mapping[str, Figures]], name: str) -> Figures:
    """Medians over rounds of one variant; ratios and differences are to `nothing` of the same round."""
    pairs = [(each[name], each["nothing"]) for each in rounds]
    median = statistics.median
    return {
        "step_seconds": median(one["step_seconds"] for one, _ in pairs),
        "step_time_ratio": median(one["step_seconds"] / other["step_seconds"] for one, other in pairs),
        "cpu_seconds_per_sample": median(one["cpu_seconds_per_sample"] for one, _ in pairs),
        "cpu_ratio": median(in_yardsticks(one) / in_yardsticks(other) for one, other in pairs),
        "cpu_share_of_step": median(
            (one["cpu_seconds_per_step"] - other["cpu_seconds_per_step"]) / other["step_seconds"]
            for one, other in pairs
        ),
        "yardstick_seconds": median(one["yardstick_seconds"] for one, _ in pairs),
        "loop_delay_p99_seconds": median(one["loop_delay_p99_seconds"] for one, _ in pairs),
    }


def in_yardsticks(run: Figures) -> float:
    return float(run["cpu_seconds_per_sample"] / run["yardstick_seconds"])


def print_costs(table: Mapping[str, Figures]) -> None:
    rows = [
        [
            name,
            f"{1e3 * each['step_seconds']:.0f} ms",
            f"{each['step_time_ratio']:.3f}",
            f"{1e6 * each['cpu_seconds_per_sample']:.0f} µs",
            f"{1e6 * each['yardstick_seconds']:.0f} µs",
            f"{each['cpu_ratio']:.3f}",
            f"{100 * each['cpu_share_of_step']:+.2f} %",
            f"{1e3 * each['loop_delay_p99_seconds']:.0f} ms",
        ]
        for name, each in table.items()
    ]
    columns = ["observing", "step", "ratio", "CPU/sample", "yardstick", "CPU ratio", "CPU of a step", "delay p99"]
    print_table("What observing costs", columns, rows)


if __name__ == "__main__":
    sys.exit(main())
