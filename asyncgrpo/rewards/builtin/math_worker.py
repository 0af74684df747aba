"""Program of a worker process: compares answers by math-verify, one line of JSON for each.

    {"gold": text, "text": text, "seconds": limit}  ->  {"value": true | false | null}

Only the standard library and math-verify are imported, so that it starts fast. It ends when its input does, when its
parent has ended, and when an answer takes longer than its limit: the kernel's alarm ends it even inside of a
computation that never comes back to Python.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import resource
import select
import signal
import sys
from typing import Any

MARGIN_SECONDS = 2.0
"""The parent ends a late worker itself; the alarm is for a parent that has ended."""
LOOK_SECONDS = 5.0
ADDRESS_SPACE = 8 << 30  # bytes


def main() -> None:
    parent = os.getppid()
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # a library that prints must not speak to our parent
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    logging.disable(logging.CRITICAL)
    try:
        judge = load()
        judge("1", r"\boxed{1}")  # what is loaded at the first use is loaded now
    except Exception as error:  # said to the parent, which raises it
        print(json.dumps({"failed": f"{type(error).__name__}: {error}"}), file=replies)
        return
    print(json.dumps({"ready": True}), file=replies)
    while os.getppid() == parent:
        if not select.select([0], [], [], LOOK_SECONDS)[0]:  # one line is asked at a time, so none waits in our buffer
            continue
        line = sys.stdin.readline()
        if not line:
            return
        asked = json.loads(line)
        signal.setitimer(signal.ITIMER_REAL, asked["seconds"] + MARGIN_SECONDS)
        value = judge(asked["gold"], asked["text"])
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(json.dumps({"value": value}), file=replies)


def load() -> Any:
    """`judge(gold, text)`: is the answer that a text gives right? None if the right answer cannot be read.

    As TRL's `accuracy_reward`: the right answer is looked for in LaTeX and plain expressions, that of the text in LaTeX
    only, boxed first, and must not be malformed.
    """
    from latex2sympy2_extended import NormalizationConfig
    from math_verify import LatexExtractionConfig, parse, verify

    latex = LatexExtractionConfig(
        normalization_config=NormalizationConfig(units=True), boxed_match_priority=0, try_extract_without_anchor=False
    )
    read_gold = functools.lru_cache(256)(lambda gold: parse(gold, parsing_timeout=None))

    def judge(gold: str, text: str) -> bool | None:
        right = read_gold(gold)
        if not right:
            return None
        answer = parse(text, extraction_config=[latex], extraction_mode="first_match", parsing_timeout=None)
        return bool(verify(right, answer, timeout_seconds=None))

    return judge


if __name__ == "__main__":
    main()
