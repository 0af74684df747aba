"""One number for a value that JSON can hold."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def digest_of(content: Any) -> str:
    """SHA-256 in hexadecimal, whatever the order of keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, ensure_ascii=True).encode()).hexdigest()
