"""Keeps secrets out of what is written down: logins in URLs are masked, keys are named in settings and never given."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

from asyncgrpo.errors import ConfigError

__all__ = [
    "MASK",
    "check_logins",
    "has_unsafe_login",
    "is_http",
    "masked",
    "masked_url",
    "secret_of",
    "without_secrets",
]

MASK = "***"
_LOGIN = re.compile(r"(\b[a-z][a-z0-9+.-]*://)[^/?#\s]+@", re.IGNORECASE)
_URL_LOGIN = re.compile(r"^(\s*[^:/?#]*:/*).*@", re.DOTALL)
_UNSAFE = re.compile(r"[/?#\\\s]")
"""What ends a login or is lost in it, so that the rest would be read as something else."""
_PARAMETER = re.compile(r"([?&](?:[\w-]*(?:token|key|secret|password|signature))=)[^&#\s'\"]+", re.IGNORECASE)

_SECRET = re.compile(
    r"(token|key|secret|pass|password|passwd|pwd|passphrase|credentials?|auth|authorization|signature)$", re.IGNORECASE
)
"""What a name ends with whose value is probably one. Not `tokens`, of which there is mostly a number."""
_FLAG = re.compile(r"^(-[^=]*)=")


def masked(text: str) -> str:
    """The text with the logins of its URLs, and parameters of theirs that are called like secrets, replaced by `***`.

    Example: `http://user:word@host:8000/x?api_key=1` becomes `http://***@host:8000/x?api_key=***`.
    """
    return _PARAMETER.sub(rf"\g<1>{MASK}", _LOGIN.sub(rf"\g<1>{MASK}@", text))


def masked_url(url: str) -> str:
    """As `masked`, of a text that is one URL and nothing else: all up to its last `@` is taken for its login, however
    wrongly that is written."""
    return masked(_URL_LOGIN.sub(rf"\g<1>{MASK}@", url))


def is_http(url: str) -> bool:
    """Whether it names a host to be asked by HTTP or HTTPS."""
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number
        return False


def without_secrets(value: Any) -> Any:
    """Plain values, for others to see: what stands under names that sound like secrets, or behind such a flag of a
    command line, is `***`, and texts are `masked`.

    Example: `{"api_key": "a", "n": 2}` and `["--api-key", "a"]` become `{"api_key": "***", "n": 2}` and
    `["--api-key", "***"]`.
    """
    if isinstance(value, str):
        flag = _FLAG.match(value)
        return f"{flag[0]}{MASK}" if flag and _SECRET.search(flag[1]) else masked(value)
    if isinstance(value, Mapping):
        return {name: _shown(name, inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        flags = [each if str(each).startswith("-") else None for each in value]
        return [_shown(before, inner) for before, inner in zip([None, *flags], value, strict=False)]
    return value


def _shown(name: Any, value: Any) -> Any:
    """name: its key, or the flag before it."""
    is_secret = isinstance(name, str) and _SECRET.search(name) and value not in (None, "", False, True)
    return MASK if is_secret else without_secrets(value)


def has_unsafe_login(url: str) -> bool:
    """Its login, if all up to its last `@` is one, has characters that belong percent-encoded."""
    before, at, _ = url.partition("://")[2].rpartition("@")
    return bool(at) and _UNSAFE.search(before) is not None


def check_logins(urls: Iterable[str], setting: str = "engines.urls", key: str = "engines.api_key_env") -> None:
    """Raises ConfigError for a URL that comes from where it was written down, and so has no login any more."""
    for url in urls:
        if urlsplit(url).username == MASK:
            raise ConfigError(
                f"{setting}: the login in {url!r} was masked when it was saved; write it out, or name a key by {key}"
            )


def secret_of(variable: str | None, setting: str, environment: Mapping[str, str] | None = None) -> str | None:
    """Value of the environment variable that a setting names; None if it names none.

    Raises ConfigError for a variable that is not set, or holds what cannot stand in a header of HTTP.
    """
    if variable is None:
        return None
    value = (os.environ if environment is None else environment).get(variable, "")
    if not value:
        raise ConfigError(f"{setting}={variable}: that environment variable is not set; export it, or name another")
    if not value.isascii() or not value.isprintable() or value != value.strip():
        raise ConfigError(f"{setting}={variable}: that environment variable holds blanks, line ends or non-ASCII text")
    return value
