"""A kind for tests: a curve that is known, in no time, and ways to go wrong. Loaded by workers from this file."""

import json
import os
import signal
import subprocess
import time

from asyncgrpo.errors import GuardError, UpdatesNotFinite


def run(run, folder, on_step):
    """The score after step n is height * n / (n + 4), plus seed / 1000 and stream / 100; `options.fail` is what goes
    wrong after step 1, of the seeds in `options.fail_seeds`."""
    options = run.own()
    (folder / "seen.json").write_text(json.dumps({"options": options, "seed": run.seed, "stream": run.stream}))
    print(f"toy, seed {run.seed}", flush=True)
    noise = run.seed / 1000 + run.stream / 100
    for step in range(run.budget.steps + 1):
        if step == 2 and run.seed in options.get("fail_seeds", [run.seed]):
            go_wrong(options.get("fail"))
        time.sleep(options.get("step_seconds", 0.0))
        score = options.get("height", 1.0) * step / (step + 4) + noise
        is_evaluated = step % run.evaluate_every == 0 or step == run.budget.steps
        on_step(
            {
                "step": step,
                "tokens": 10.0 * step,
                "samples": 4.0 * step,
                "seconds": 0.5 * step,
                "reward": score - 0.1 if step else None,
                "score": score if is_evaluated else None,
                "gradient_norm": 1.0 / (step + 1),
                "verdict": "balanced",
            }
        )


def go_wrong(how):
    match how:
        case "raise":
            raise ZeroDivisionError("the toy broke")
        case "guard":
            raise GuardError("reward collapsed; guards.reward_action=stop")
        case "nan":
            raise UpdatesNotFinite("loss is nan")
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)
        case str() as path if path.startswith("/"):  # die, and leave a child behind
            with open(path, "w") as file:
                file.write(str(subprocess.Popen(["sleep", "600"]).pid))
            os.kill(os.getpid(), signal.SIGKILL)
        case "hang":
            time.sleep(600)


def prepare(folder, seed, options):
    with open(folder.parent / "calls", "a") as calls:
        calls.write(f"{seed}\n")
    time.sleep(options.get("seconds", 0.0))
    (folder / "start.txt").write_text(f"{options['digits']} {seed}")
    return {"options.start": folder / "start.txt"}


def stops_early(run, folder, on_step):
    for step in range(2):
        on_step({"step": step, "tokens": 10.0 * step, "samples": 4.0 * step, "seconds": 0.5 * step, "score": 1.0})


def forgets_the_last_score(run, folder, on_step):
    for step in range(run.budget.steps + 1):
        score = None if step == run.budget.steps else 1.0
        on_step({"step": step, "tokens": 10.0 * step, "samples": 4.0 * step, "seconds": 0.5 * step, "score": score})


def prepares_nothing(folder, seed, options):
    return 7
