"""The model inside a fake engine: true next-token distributions in float32 on CPU, and weights that can be replaced.

N sequences, V vocabulary. Everything is recomputed at each token (no KV cache), so it always belongs to the present
weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from asyncgrpo.testing.tiny import quiet


class FakeModel:
    """raw_logprobs: report log-probabilities without temperature, as vLLM does unless told otherwise."""

    def __init__(self, folder: str | Path, *, raw_logprobs: bool = False) -> None:
        with quiet():
            self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.logprobs_mode = "raw_logprobs" if raw_logprobs else "processed_logprobs"
        self._stale_head: torch.Tensor | None = None
        ends = self._model.generation_config.eos_token_id
        self.end_tokens = frozenset([ends] if isinstance(ends, int) else ends or ())
        self.vocab_size: int = self._model.config.vocab_size
        self.max_positions: int = self._model.config.max_position_embeddings
        self.dtype = str(torch.float32)
        self.hf_overrides: dict[str, Any] = {}

    @property
    def module(self) -> torch.nn.Module:
        module: torch.nn.Module = self._model
        return module

    @torch.inference_mode()
    def distributions(
        self, contexts: Sequence[Sequence[int]], temperatures: Sequence[float]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Next-token log-probabilities [N, V]: those to sample from, and those to report."""
        lengths = torch.tensor([len(context) for context in contexts])
        ids = torch.zeros(len(contexts), int(lengths.max()), dtype=torch.long)
        for row, context in enumerate(contexts):
            ids[row, : len(context)] = torch.tensor(context)  # padded right: causal attention never looks there
        logits = self._logits(ids)[torch.arange(len(contexts)), lengths - 1]
        scale = torch.tensor([temperature or 1.0 for temperature in temperatures]).unsqueeze(1)
        sampled = torch.log_softmax(logits / scale, dim=-1)
        return sampled, torch.log_softmax(logits, dim=-1) if self.logprobs_mode == "raw_logprobs" else sampled

    @torch.inference_mode()
    def score(self, prompt: Sequence[int], completion: Sequence[int], temperature: float = 1.0) -> list[float]:
        """Log-probability of every completion token after all before it (teacher forcing)."""
        ids = torch.tensor([[*prompt, *completion]])
        logprobs = torch.log_softmax(self._logits(ids)[0] / temperature, dim=-1)
        rows = torch.arange(len(prompt) - 1, ids.shape[1] - 1)
        return logprobs[rows, ids[0, len(prompt) :]].tolist()

    def scramble(self) -> None:
        """Weights that nobody trained."""
        with torch.no_grad():
            for parameter in self._model.parameters():
                parameter.normal_(std=0.5)

    def load(self, path: str | Path, *, keep_head: bool = False) -> None:
        """Replace the weights by those in a safetensors file, under Hugging Face checkpoint names.

        keep_head: go on using the old output head, as vLLM's CPU build does with a tied one. Raises KeyError for a name
        that the model does not have, ValueError for a shape; names that are absent keep their weights.
        """
        weights = load_file(str(path))
        parameters = dict(self._model.named_parameters(remove_duplicate=False))
        if unknown := sorted(weights.keys() - parameters.keys()):
            raise KeyError(f"There is no module or parameter named {unknown[0]!r}")
        head = self._model.get_output_embeddings().weight
        self._stale_head = head.detach().clone() if keep_head else None
        with torch.no_grad():
            for name, tensor in weights.items():
                if tensor.shape != parameters[name].shape:
                    raise ValueError(
                        f"Attempted to load weight {name!r} of shape {tuple(tensor.shape)} "
                        f"into parameter {tuple(parameters[name].shape)}"
                    )
                parameters[name].copy_(tensor)

    def _logits(self, ids: torch.Tensor) -> torch.Tensor:
        hidden = self._model.get_decoder()(ids, use_cache=False).last_hidden_state
        head = self._model.get_output_embeddings().weight if self._stale_head is None else self._stale_head
        return torch.nn.functional.linear(hidden, head)
