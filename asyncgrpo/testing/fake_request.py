"""One request inside a fake engine."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from asyncgrpo.testing.fake_adapters import FakeAdapter

BLOCK_TOKENS = 16
"""Tokens in one block of the KV cache."""


@dataclass(eq=False)
class CoreRequest:
    """One completion on its way."""

    request_id: str
    prompt: tuple[int, ...]
    params: Mapping[str, Any]
    script: deque[int] | None
    generator: torch.Generator
    finished: asyncio.Future[str]
    """Finish reason; or EngineDead."""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[tuple[float, int]] = field(default_factory=list)
    """Log-probability and rank of each token."""
    versions: list[str] = field(default_factory=list)
    stop_reason: int | None = None
    adapter: FakeAdapter | None = None
    """What samples it; None: the model itself."""
    holds_cache: bool = False
    """It is being computed: its tokens are in the KV cache."""

    @property
    def blocks(self) -> int:
        """Of the KV cache, for its tokens and the next one."""
        return -(-(len(self.prompt) + len(self.token_ids) + 1) // BLOCK_TOKENS)
