"""A script of one's own: LoRA, two rewards (one async, one that sometimes fails), a JSONL file, held-out prompts.

    python scripts/examples/lora_two_rewards.py MODEL [--steps 10] [--out runs/example] [--devices cpu]

Trains, evaluates before and after, and says how the adapters are merged and looked at.
"""

import argparse
import asyncio
import json
import random
import re
from pathlib import Path

from asyncgrpo import AsyncGRPOConfig, AsyncGRPOTrainer


async def numbers(completions, answer, **columns):
    """A judge elsewhere would be awaited here. Share of the wanted numbers that were said, in order."""
    await asyncio.sleep(0.01)
    said = [re.findall(r"\d+", completion[-1]["content"]) for completion in completions]
    return [share(found, list(map(str, wanted))) for found, wanted in zip(said, answer, strict=True)]


def brevity(completions, answer, **columns):
    """Fails now and then, as services do: its group is dropped, and the prompt comes again. So that every run sees it,
    it is the first time that it is asked about one prompt in ten or so."""
    wanted = tuple(answer[0])
    if sum(wanted) % 10 == 0 and wanted not in asked:
        asked.add(wanted)
        raise TimeoutError("the judge is not there")
    return [-len(completion[-1]["content"]) / 100 for completion in completions]


asked = set()


def share(found, wanted):
    same = sum(a == b for a, b in zip(found, wanted, strict=False))
    return same / max(len(found), len(wanted))


def write_rows(file, count, seed):
    draw = random.Random(seed)
    with open(file, "w", encoding="utf-8") as lines:
        for _ in range(count):
            wanted = draw.sample(range(1, 10), 4)
            prompt = [{"role": "user", "content": f"Repeat these numbers: {', '.join(map(str, wanted))}."}]
            lines.write(json.dumps({"prompt": prompt, "answer": wanted}) + "\n")


def main(argv=None, **trainer_arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a folder in Hugging Face format, or a name on the hub")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--out", default="runs/example", help="the run's folder; the data is put beside it")
    parser.add_argument("--devices", nargs="*", default=["auto"], help="one engine for each: cpu:auto, cuda:0, …")
    options = parser.parse_args(argv)
    train, held_out = (Path(f"{options.out}-{name}.jsonl") for name in ("train", "held-out"))
    train.parent.mkdir(parents=True, exist_ok=True)
    write_rows(train, 256, seed=0)
    write_rows(held_out, 16, seed=1)

    trainer = AsyncGRPOTrainer(
        model=options.model,
        reward_funcs=[numbers, brevity],
        train_dataset=str(train),
        eval_dataset=str(held_out),
        args=AsyncGRPOConfig(
            output_dir=options.out,
            max_steps=options.steps,
            reward_weights=[1.0, 0.1],
            reward_on_error="drop_group",
            system_prompt="Answer with numbers.",
            lora_r=16,
            lora_alpha=32,
            learning_rate=5e-4,
            groups_per_step=4,
            max_completion_length=16,
            num_generations_eval=4,
            vllm_devices=options.devices,
            vllm_max_model_length=128,
            enforce_eager=True,  # compiling would take longer than so short a run
        ),
        **trainer_arguments,
    )
    outcome = trainer.train()
    print(f"\nmerge the adapters:  asyncgrpo merge {options.out}\ntry what was trained: asyncgrpo chat {options.out}")
    return outcome


if __name__ == "__main__":
    main()
