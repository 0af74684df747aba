"""The adapters of one engine: what it has, which one new requests name, and which ones those under way do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from asyncgrpo.generation.request import LOAD_ADAPTER, UNLOAD_ADAPTER

NO_ADAPTER = "(without an adapter)"
"""In place of the name of one that an engine has lost: none that a run gives."""


class Adapters:
    """post(path, body): a control call that is never repeated. names(): what the engine's /v1/models lists. Both raise
    EngineError. loading(): entered around every load.
    """

    def __init__(
        self,
        post: Callable[[str, Mapping[str, Any]], Awaitable[None]],
        names: Callable[[], Awaitable[Collection[str]]],
        loading: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self.current: str | None = None
        """What new requests name, from their first token to their last; None: the model itself."""
        self._post, self._names, self._loading = post, names, loading
        self._open: Counter[str] = Counter()

    async def load(self, name: str, path: str) -> None:
        """Have the engine load an adapter from a folder that it can read, in place of one it may have of that name."""
        with self._loading():
            await self.unload(name)
            await self._post(LOAD_ADAPTER, {"lora_name": name, "lora_path": path})

    async def unload(self, name: str) -> None:
        """Have no new request name it; those under way end on it. The same if the engine does not have it."""
        if name in await self._names():
            await self._post(UNLOAD_ADAPTER, {"lora_name": name})

    async def serving(self) -> str | None:
        """The current one, if the engine still has it."""
        if self.current is None or self.current in await self._names():
            return self.current
        return NO_ADAPTER

    @contextmanager
    def request(self) -> Iterator[str | None]:
        """The adapter that a request names, which is in use inside the block."""
        name = self.current
        if name is None:
            yield None
            return
        self._open[name] += 1
        try:
            yield name
        finally:
            self._open[name] -= 1
            if not self._open[name]:
                del self._open[name]

    @property
    def in_use(self) -> frozenset[str]:
        """The current one, and those that requests without an answer name."""
        current = () if self.current is None else (self.current,)
        return frozenset((*self._open, *current))
