"""How much of generation and training overlaps: the same work synchronously and asynchronously, with a real vLLM.

    python scripts/benchmarks/overlap.py            # about a quarter of an hour on two cores
    python scripts/benchmarks/overlap.py --quick    # fewer steps, without the runs under load

Needs vLLM (scripts/setup.sh). The engine is pinned to one core, the learner to another; close other programs. The model
is random and made here, so completions are as long as the setting says, and nothing is learnt.

    equal    every completion has the same length, max_staleness 1
    ragged   lengths are geometric (a share of the vocabulary ends a completion), max_staleness 4
    fast     as ragged, but training takes twice as long as generation: nothing may be dropped for it

T_gen and T_train are seconds per step of generating and of training, where each has the machine for itself (the
synchronous run), and once more while a stand-in for the other side keeps the other core busy (`load.py`). A step cannot
be shorter than the longer of them:

    limit_ratio          max(T_gen, T_train) / T_step of the asynchronous run, both under load; 1 is perfect overlap
    speedup_over_sync    T_step synchronous / T_step asynchronous; at most (T_gen + T_train) / max(T_gen, T_train) <= 2
    speedup_limit_under_load
                         the same limit where both slow each other down, as cores do that share memory and caches
    pause_seconds        what one publish stops the engine for
    pause_tokens         what the engine would have sampled in that time

--max-num-seqs sets how fast generation is, and so the balance T_gen / T_train, which is printed: 1 is even. Steps are
means without the first --skip and the last two. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from shared import Figures, print_figures, print_table, ratio, this_checkout, versions

from asyncgrpo.observe.recorder import read_metrics
from asyncgrpo.testing.tiny import make_tokenizer, quiet

ROOT = Path(__file__).resolve().parents[2]
VOCABULARY = 16384
ENGINE_CORE, LEARNER_CORE = 0, 1
GROUPS, GENERATIONS, PROMPT = 4, 8, 32
UNCOUNTED_AT_THE_END = 2
"""Steps for which nothing more is generated beside them."""
Record = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Setting:
    """One kind of work."""

    name: str
    max_staleness: int
    """Of the asynchronous run."""
    longest: int
    """Most tokens of a completion."""
    mean: float | None = None
    """Of geometric lengths, before they are cut at `longest`; None: all are `longest`."""
    num_iterations: int = 1


def settings(length: int) -> tuple[Setting, ...]:
    return (
        Setting("equal", 1, length),
        Setting("ragged", 4, 3 * length, mean=1.2 * length),
        Setting("fast", 4, 3 * length, mean=1.2 * length, num_iterations=2),
    )


def main(argv: Sequence[str] | None = None, runs: Callable[[Path, argparse.Namespace], Runs] | None = None) -> int:
    """runs: makes what runs a setting; absent, `Bench`."""
    arguments = parse(argv)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model_bytes = make_model(folder / "model", arguments.layers)
        make_task(folder)
        equal, ragged, fast = settings(arguments.length)
        bench = (runs or Bench)(folder, arguments)
        figures: Figures = {
            "equal": compare(bench, equal, loaded=not arguments.quick),
            "ragged": compare(bench, ragged, loaded=False),
            "fast": waste(bench, fast),
        }
    print_settings(figures)
    print_figures(
        {
            **{
                key: figures["equal"][key]
                for key in ("limit_ratio", "speedup_over_sync", "pause_seconds", "pause_tokens")
            },
            **{f"{key}_ragged": figures["ragged"][key] for key in ("limit_ratio", "speedup_over_sync")},
            "dropped_groups": sum(each["dropped_groups"] for each in figures.values()),
            "snapshot_bytes": model_bytes,
            **figures,
            "versions": versions(),
        }
    )
    return 0


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="8 steps, and nothing measured under load")
    parser.add_argument("--steps", type=int, default=16, help="steps of a run (default: %(default)s)")
    parser.add_argument("--skip", type=int, default=3, help="first steps that do not count (default: %(default)s)")
    parser.add_argument("--layers", type=int, default=16, help="layers of the model (default: %(default)s: 265 MB)")
    parser.add_argument("--length", type=int, default=24, help="tokens of an equal completion (default: %(default)s)")
    parser.add_argument("--max-num-seqs", type=int, default=12, help="completions at once (default: %(default)s)")
    arguments = parser.parse_args(argv)
    if arguments.quick:
        arguments.steps = 8
    if arguments.steps - arguments.skip <= UNCOUNTED_AT_THE_END:
        parser.error(f"--steps {arguments.steps}: the first {arguments.skip} and the last two leave none to count")
    return arguments


class Runs(Protocol):
    def run(self, setting: Setting, max_staleness: int, load: str | None = None) -> tuple[list[Record], list[Record]]:
        """Records of all steps, and of those that count. load: see `load.py`."""


@dataclass(frozen=True, slots=True)
class Bench:
    """Runs `asyncgrpo train` on the made model and task."""

    folder: Path
    arguments: argparse.Namespace
    train: tuple[str, ...] = (sys.executable, "-m", "asyncgrpo.cli.main", "train")
    """Command that takes the configuration's file."""

    def run(self, setting: Setting, max_staleness: int, load: str | None = None) -> tuple[list[Record], list[Record]]:
        output = self.folder / f"{setting.name}-{max_staleness}-{load or 'alone'}"
        print(f"{output.name} …", file=sys.stderr, flush=True)
        config = self.config(setting, max_staleness, output)
        config_file = self.folder / f"{output.name}.json"
        config_file.write_text(json.dumps(config))  # JSON is YAML
        with busy(load, self.folder / "model"):
            child = subprocess.run(
                [*self.train, str(config_file)], cwd=ROOT, env=this_checkout(), capture_output=True, text=True
            )
        if child.returncode:
            sys.exit(f"asyncgrpo train failed:\n{child.stdout[-2000:]}\n{child.stderr[-2000:]}")
        records = read_metrics(output / "metrics.jsonl")
        return records, records[self.arguments.skip : -UNCOUNTED_AT_THE_END]

    def config(self, setting: Setting, max_staleness: int, output: Path) -> dict[str, Any]:
        ends = 0 if setting.mean is None else round(VOCABULARY / setting.mean)
        return {
            "run": {"output_dir": str(output)},
            "model": {"path": str(self.folder / "model")},
            "data": {"dataset": str(self.folder / "task.jsonl"), "max_prompt_length": PROMPT},
            "rewards": [{"path": f"{self.folder / 'reward.py'}:mean_token"}],
            "generation": {
                "num_generations": GENERATIONS,
                "max_completion_length": setting.longest,
                "stop_token_ids": list(range(VOCABULARY - ends, VOCABULARY)),
            },
            "engines": {
                "devices": [f"cpu:{ENGINE_CORE}"],
                "max_num_seqs": self.arguments.max_num_seqs,
                "cpu_kv_cache_gib": 1,
                "enforce_eager": True,
            },
            "learner": {"devices": [f"cpu:{LEARNER_CORE}"]},
            "buffer": {"max_staleness": max_staleness},
            "training": {
                "max_steps": self.arguments.steps,
                "groups_per_step": GROUPS,
                "num_iterations": setting.num_iterations,
                "learning_rate": 1e-9,  # lengths must not change
            },
            "observe": {"save_rollouts": False, "metrics_port": -1},
        }


def compare(bench: Runs, setting: Setting, *, loaded: bool) -> Figures:
    """Synchronous against asynchronous."""
    _, sync = bench.run(setting, 0)
    everything, overlapped = bench.run(setting, setting.max_staleness)
    alone = {"generation": generation_seconds(sync), "training": mean(sync, "training_seconds")}
    under_load = dict(alone)
    if loaded:
        under_load = {
            "generation": generation_seconds(bench.run(setting, 0, load="learner")[1]),
            "training": mean(bench.run(setting, 0, load="engine")[1], "training_seconds"),
        }
    step, pause = mean(overlapped, "step_seconds"), mean(overlapped, "publish_seconds")
    return {
        "limit_ratio": ratio(max(under_load.values()), step),
        "limit_ratio_alone": ratio(max(alone.values()), step),
        "speedup_over_sync": ratio(mean(sync, "step_seconds"), step),
        "speedup_limit": sum(alone.values()) / max(alone.values()),
        "speedup_limit_under_load": sum(alone.values()) / max(under_load.values()),
        "balance": ratio(alone["generation"], alone["training"]),
        "step_seconds": step,
        "step_seconds_sync": mean(sync, "step_seconds"),
        "alone": alone,
        "under_load": under_load,
        "training_seconds": mean(overlapped, "training_seconds"),
        "snapshot_seconds": mean(overlapped, "snapshot_seconds"),
        "waiting_seconds": mean(overlapped, "waiting_seconds"),
        "generation_idle_seconds": mean(overlapped, "generation_idle_seconds"),
        "pause_seconds": pause,
        "pause_tokens": pause * mean(sync, "tokens_generated") / alone["generation"],
        "completion_tokens_mean": mean(overlapped, "completion_tokens_mean"),
        "completion_tokens_max": max(record["completion_tokens_max"] for record in overlapped),
        "staleness_mean": mean(overlapped, "staleness_mean"),
        "max_staleness": setting.max_staleness,
        "dropped_groups": dropped(everything),
    }


def waste(bench: Runs, setting: Setting) -> Figures:
    """Generation waits for training: slots fill, and nothing is thrown away."""
    everything, counted = bench.run(setting, setting.max_staleness)
    return {
        "dropped_groups": dropped(everything),
        "staleness_mean": mean(counted, "staleness_mean"),
        "generation_idle_ratio": mean(counted, "generation_idle_ratio"),
        "step_seconds": mean(counted, "step_seconds"),
        "max_staleness": setting.max_staleness,
    }


def generation_seconds(sync: Sequence[Record]) -> float:
    """Of a synchronous run: what the learner waits for, without the publish that goes before."""
    return mean(sync, "waiting_seconds") - mean(sync, "publish_seconds")


def dropped(records: Sequence[Record]) -> int:
    return sum(value for name, value in records[-1].items() if name.startswith("groups_dropped/"))


def mean(records: Sequence[Record], field: str) -> float:
    return statistics.fmean(record[field] for record in records)


@contextmanager
def busy(load: str | None, model: Path) -> Iterator[None]:
    """A stand-in for one side on that side's core, inside the block."""
    if load is None:
        yield
        return
    core = ENGINE_CORE if load == "engine" else LEARNER_CORE
    child = subprocess.Popen([sys.executable, str(Path(__file__).with_name("load.py")), load, str(model), str(core)])
    try:
        yield
    finally:
        child.kill()
        child.wait()


def make_model(folder: Path, layers: int) -> int:
    """A random Llama of SmolLM2-135M's width, float32. Returns its bytes."""
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = make_tokenizer()
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=layers,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
    )
    with quiet():
        model = LlamaForCausalLM(config)
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())


def make_task(folder: Path) -> None:
    """Prompts of PROMPT tokens (the tokenizer's are bytes), and a reward that differs between random completions."""
    prompts = [{"prompt": f"{number:0{PROMPT}d}"} for number in range(256)]
    (folder / "task.jsonl").write_text("".join(json.dumps(row) + "\n" for row in prompts))
    (folder / "reward.py").write_text(
        "def mean_token(completion_ids, **_):\n    return [sum(ids) / len(ids) / 10000 for ids in completion_ids]\n"
    )


def print_settings(figures: Figures) -> None:
    for name, each in figures.items():
        rows = [[key, f"{value:.3f}"] for key, value in each.items() if isinstance(value, int | float)]
        rows += [
            [f"{side}, {where.replace('_', ' ')}", f"{seconds:.3f} s"]
            for where in ("alone", "under_load")
            for side, seconds in each.get(where, {}).items()
        ]
        print_table(name, ["", name], rows)


if __name__ == "__main__":
    sys.exit(main())
