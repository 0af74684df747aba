"""The process of a reward model: lines of JSON in, lines of JSON out.

    {"id": 3, "texts": [text, or list of messages, …]}    →    {"id": 3, "scores": [0.5, {"error": "too long"}, …]}
    {"cancel": 3}                                          →    nothing more of 3

It ends when its standard input does. What waits is scored first come, first served, `batch_size` texts in one pass.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections import deque
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer


@dataclass(slots=True)
class _Request:
    number: int
    left: int
    scores: list[Any] = field(default_factory=list)


class Refused(Exception):
    """What is loaded is no reward model."""


class Scorer:
    """Scores texts with a sequence classifier, as TRL does: no special tokens but the template's, padded on the right.

    Raises Refused for a model without one trained score.
    """

    def __init__(self, model: str, dtype: str, on_gpu: bool) -> None:
        self._tokenizer = AutoTokenizer.from_pretrained(model)
        if self._tokenizer.pad_token_id is None:
            self._tokenizer.pad_token = self._tokenizer.eos_token
        loaded, found = AutoModelForSequenceClassification.from_pretrained(
            model, dtype=getattr(torch, dtype), output_loading_info=True
        )
        if found["missing_keys"]:
            raise Refused(f"it has no {', '.join(sorted(found['missing_keys'])[:3])}: no trained head that scores")
        if loaded.config.num_labels != 1:
            raise Refused(f"it has {loaded.config.num_labels} labels; a reward model has one (num_labels=1)")
        text_config = loaded.config.get_text_config()
        text_config.pad_token_id = loaded.config.pad_token_id = self._tokenizer.pad_token_id
        self._longest = _most_tokens(loaded)
        self._device = torch.device("cuda" if on_gpu else "cpu")
        self._model = loaded.to(self._device).eval()

    def encode(self, text: str | list[dict[str, Any]]) -> list[int]:
        """Raises ValueError, or what the chat template raises."""
        if not isinstance(text, str):
            if not self._tokenizer.chat_template:
                raise ValueError("its tokenizer has no chat template, and the prompts are chats")
            text = self._tokenizer.apply_chat_template(text, tokenize=False)
        ids: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def fault(self, ids: list[int]) -> str | None:
        """Why these cannot be scored."""
        if not ids:
            return "prompt and completion are empty"
        if self._longest is not None and len(ids) > self._longest:
            return f"prompt and completion have {len(ids)} tokens, more than the model's {self._longest}"
        return None

    @torch.inference_mode()
    def score(self, batch: list[list[int]]) -> list[float]:
        padded = self._tokenizer.pad({"input_ids": batch}, padding_side="right", return_tensors="pt")
        logits = self._model(**padded.to(self._device)).logits
        scores: list[float] = logits[:, 0].float().tolist()
        return scores


def _most_tokens(model: Any) -> int | None:
    """Of one text. RoBERTa and its kin count positions from behind the padding's, so have fewer than they are told."""
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, torch.nn.Embedding):
            first = 0 if module.padding_idx is None else module.padding_idx + 1
            return module.num_embeddings - first
    most: int | None = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return most


def serve(scorer: Scorer, inbox: SimpleQueue[dict[str, Any]], batch_size: int, replies: int) -> None:
    """Until the process is ended."""
    requests: dict[int, _Request] = {}
    waiting: deque[tuple[int, int, list[int]]] = deque()  # number of the request, place in it, tokens
    while True:
        while not waiting or not inbox.empty():
            message = inbox.get()
            if "cancel" in message:
                requests.pop(message["cancel"], None)
                waiting = deque(piece for piece in waiting if piece[0] != message["cancel"])
            else:
                _accept(scorer, message, requests, waiting, replies)
        batch = [waiting.popleft() for _ in range(min(batch_size, len(waiting)))]
        for (number, place, _), score in zip(batch, scorer.score([ids for _, _, ids in batch]), strict=True):
            request = requests[number]
            request.scores[place] = score
            request.left -= 1
            if request.left == 0:
                _write(replies, {"id": number, "scores": requests.pop(number).scores})


def _accept(
    scorer: Scorer, message: dict[str, Any], requests: dict[int, _Request], waiting: deque[Any], replies: int
) -> None:
    number = message["id"]
    try:
        encoded = [scorer.encode(text) for text in message["texts"]]
    except Exception as error:  # a chat template may raise anything; it costs this request
        _write(replies, {"id": number, "failed": f"{type(error).__name__}: {error}"})
        return
    faults = [scorer.fault(ids) for ids in encoded]
    scores = [None if fault is None else {"error": fault} for fault in faults]
    pieces = [(number, place, ids) for place, ids in enumerate(encoded) if faults[place] is None]
    if pieces:
        requests[number] = _Request(number, len(pieces), scores)
        waiting.extend(pieces)
    else:
        _write(replies, {"id": number, "scores": scores})


def _write(handle: int, message: dict[str, Any]) -> None:
    line = json.dumps(message).encode() + b"\n"
    while line:
        line = line[os.write(handle, line) :]


def _receive(inbox: SimpleQueue[dict[str, Any]]) -> None:
    for line in sys.stdin.buffer:
        inbox.put(json.loads(line))
    os._exit(0)  # whoever asked has ended, or wants nothing more


def main() -> None:
    options = json.loads(sys.argv[1])
    replies = os.dup(1)
    os.dup2(2, 1)  # what libraries print is no reply
    inbox: SimpleQueue[dict[str, Any]] = SimpleQueue()
    threading.Thread(target=_receive, args=(inbox,), daemon=True).start()
    if options["cores"]:
        os.sched_setaffinity(0, options["cores"])
        torch.set_num_threads(len(options["cores"]))
    try:
        scorer = Scorer(options["model"], options["dtype"], options["on_gpu"])
    except Refused as refused:
        _write(replies, {"refused": str(refused)})
        return
    _write(replies, {"ready": True})
    serve(scorer, inbox, options["batch_size"], replies)


if __name__ == "__main__":
    main()
