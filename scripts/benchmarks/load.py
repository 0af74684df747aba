"""Keeps a core busy as one side of a run would, until it is killed: `load.py engine|learner MODEL CORE`.

learner   forward and backward passes over a step's tokens
engine    forward passes over a handful of tokens: what decoding does, weights read again and again
"""

from __future__ import annotations

import os
import sys

DECODED = 12
TRAINED = 512


def main(side: str, folder: str, core: str) -> None:
    os.sched_setaffinity(0, {int(core)})
    import torch
    from transformers import LlamaForCausalLM

    torch.set_num_threads(1)
    model = LlamaForCausalLM.from_pretrained(folder)
    tokens = torch.randint(0, model.config.vocab_size, (1, TRAINED if side == "learner" else DECODED))
    while True:
        if side == "learner":
            model(tokens, labels=tokens).loss.backward()
            model.zero_grad()
        else:
            with torch.no_grad():
                model(tokens)


if __name__ == "__main__":
    main(*sys.argv[1:])
