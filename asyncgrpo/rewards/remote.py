"""Rewards from a server: one POST per call.

    request  {"prompts": […], "completions": […], "columns": {"answer": […]}}    one entry per sample in every list
    answer   {"rewards": [0.5, null, {"error": "no verdict"}]}                     null: does not apply

A connection that fails, 429 and 5xx are tried again, with pauses that grow, for as long as the call has; whatever else
is no such answer fails the call at once, in the server's words. No redirect is followed, and no proxy is used.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from asyncgrpo.config.secrets import check_logins, masked, masked_url, secret_of
from asyncgrpo.rewards.calling import RUN_ARGUMENTS
from asyncgrpo.user_code.texts import brief

LARGEST_ANSWER = 4 << 20
"""Bytes: rewards of a hundred thousand samples are less."""
FIRST_PAUSE, LONGEST_PAUSE = 0.25, 8.0
"""Seconds between two tries; each pause is twice the one before, and then a random half to the whole of that."""
WITHIN_CALL = 0.95
"""Share of a call's timeout in which there are tries: the call then ends with what the server said, not as late."""
_NOT_SENT = ("prompts", "completions", "completion_ids", *RUN_ARGUMENTS)
_SHOWN = 300  # characters of what the server said


class ServerFailed(Exception):
    """What the server answered, or that it did not."""


class _TryAgain(ServerFailed):
    pass


class RemoteReward:
    """A reward function that asks a server.

    url: whom to ask; may hold a login.
    api_key_env: environment variable with a key that goes along as `Authorization: Bearer KEY`.
    seconds: time for all tries; a run makes it 0.95 of the function's timeout.
    """

    def __init__(self, url: str, api_key_env: str | None = None, *, seconds: float = 57.0) -> None:
        self._url, self._api_key_env, self._seconds = url, api_key_env, seconds
        self.__name__ = urlsplit(url).path.rstrip("/").rpartition("/")[2] or urlsplit(url).hostname or "remote"

    def __repr__(self) -> str:
        return f"RemoteReward({masked_url(self._url)!r})"

    def check(self) -> None:
        """Raises ConfigError for a key that is not there, and a login that was masked."""
        check_logins([self._url], "rewards", "api_key_env")
        self._key()

    def bound(self, *, max_completion_length: int, timeout: float) -> RemoteReward:
        """The same, with the time that a call has."""
        return RemoteReward(self._url, self._api_key_env, seconds=WITHIN_CALL * timeout)

    async def __call__(self, prompts: list[Any], completions: list[Any], **columns: Any) -> list[Any]:
        """Rewards in order; of a sample for which the server gave an error, the exception. Raises ServerFailed."""
        sent = {name: values for name, values in columns.items() if name not in _NOT_SENT}
        try:
            body = json.dumps({"prompts": prompts, "completions": completions, "columns": sent}).encode()
        except (TypeError, ValueError) as error:
            raise ServerFailed(f"the columns {', '.join(sent)} cannot be sent as JSON: {error}") from error
        until, tries, pause = time.monotonic() + self._seconds, 0, FIRST_PAUSE
        async with self._session() as session:
            while True:
                tries += 1
                try:
                    async with asyncio.timeout_at(asyncio.get_running_loop().time() + until - time.monotonic()):
                        return self._read(await self._ask(session, body))
                except TimeoutError as error:
                    raise ServerFailed(f"{self._shown} gave no answer in time ({tries} tries)") from error
                except _TryAgain as error:
                    wait = pause * random.uniform(0.5, 1.0)
                    if time.monotonic() + wait >= until:
                        raise ServerFailed(f"{error} (the last of {tries} tries in {self._seconds:g} s)") from error
                await asyncio.sleep(wait)
                pause = min(2 * pause, LONGEST_PAUSE)

    def _session(self) -> aiohttp.ClientSession:
        key = self._key()
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        if key is not None:
            headers["Authorization"] = f"Bearer {key}"
        return aiohttp.ClientSession(
            headers=headers, timeout=aiohttp.ClientTimeout(total=None), cookie_jar=aiohttp.DummyCookieJar()
        )

    def _key(self) -> str | None:
        return secret_of(self._api_key_env, f"rewards: {self._shown}: api_key_env")

    async def _ask(self, session: aiohttp.ClientSession, body: bytes) -> bytes:
        try:
            async with session.post(self._url, data=body, allow_redirects=False) as answer:
                status, text = answer.status, await self._whole(answer)
        except aiohttp.ClientSSLError as error:
            raise ServerFailed(f"{self._shown}: {masked(str(error))}") from error
        except aiohttp.ClientError as error:
            raise _TryAgain(f"{self._shown}: {masked(str(error)) or type(error).__name__}") from error
        said = masked(text.decode(errors="replace"))[:_SHOWN]
        if status == 429 or status >= 500:
            raise _TryAgain(f"{self._shown} answered {status}: {said}")
        if 300 <= status < 400:
            where = masked_url(answer.headers.get("Location", "nowhere"))
            raise ServerFailed(f"{self._shown} answered {status}, a redirect to {where}; name that URL itself")
        if status != 200:
            raise ServerFailed(f"{self._shown} answered {status}: {said}")
        return text

    async def _whole(self, answer: aiohttp.ClientResponse) -> bytes:
        text = b""
        async for piece in answer.content.iter_any():
            text += piece
            if len(text) > LARGEST_ANSWER:
                raise ServerFailed(f"{self._shown} answered with more than {LARGEST_ANSWER >> 20} MiB")
        return text

    def _read(self, text: bytes) -> list[Any]:
        try:
            rewards = json.loads(text)["rewards"]
        except (ValueError, LookupError, TypeError, RecursionError):
            rewards = None
        if not isinstance(rewards, list):
            shown = brief(text.decode(errors="replace"))
            raise ServerFailed(f'{self._shown} answered {shown}, expected {{"rewards": [one per completion]}}')
        return [ServerFailed(str(r["error"])[:_SHOWN]) if isinstance(r, dict) and "error" in r else r for r in rewards]

    @property
    def _shown(self) -> str:
        return masked_url(self._url)
