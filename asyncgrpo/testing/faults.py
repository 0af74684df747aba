"""What a fake engine does wrong, and when: a plan of faults, each bound to a route and to the n-th request of it.

FaultPlan(Fault("status", nth=(0, 1), status=503), Fault("ignore", on=UPDATE))
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

GENERATE = "/inference/v1/generate"
START, UPDATE, FINISH = "/start_weight_update", "/update_weights", "/finish_weight_update"

Kind = Literal[
    # before the request is looked at
    "status",  # answer `status` with `text`
    "garbage",  # answer 200 with `text`
    "disconnect",  # close the connection without an answer
    "hang",  # never answer
    "slow",  # wait `seconds`, then go on as usual
    "die",  # the engine's process ends (in a test process: every socket of it closes)
    # after the request is done
    "lost_answer",  # close the connection without saying so
    # instead of what /update_weights or /v1/load_lora_adapter should do, while answering 200
    "ignore",  # keep the old weights; of an adapter: sample with the model itself
    "old_head",  # load everything but the output head
    # to the answer of a generate request
    "null_logprob",
    "nan_logprob",
    "absent_logprob",  # -9999.0, as vLLM writes NaN and -inf
    "positive_logprob",
    "missing_logprobs",
    "missing_logprob",  # one entry less than tokens
    "shifted_logprobs",  # entries of other tokens
    "missing_token_ids",
    "missing_versions",
    "short_versions",  # spans that end one token early
    "foreign_version",
    "empty",  # zero tokens
    "wild_token",  # an id far outside the vocabulary
    "abort",
    "unknown_finish",
    "two_choices",
]


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong.

    on: route. nth: which requests of that route, counted from 0; None: all. match: further condition on the body.
    chance: share of these requests that meet it, drawn at random.
    """

    kind: Kind
    on: str = GENERATE
    nth: tuple[int, ...] | None = None
    match: Callable[[Mapping[str, Any]], bool] | None = None
    status: int = 500
    text: str = "injected failure"
    seconds: float = 0.0
    chance: float = 1.0


class FaultPlan:
    """Counts requests per route and says which fault, if any, the next one meets. The first that fits wins.

    seed: of what faults with a `chance` draw.
    """

    def __init__(self, *faults: Fault, seed: int = 0) -> None:
        self._faults = faults
        self._random = random.Random(seed)
        self._seen: Counter[str] = Counter()

    def take(self, path: str, body: Mapping[str, Any]) -> Fault | None:
        """To be called once for every request."""
        number = self._seen[path]
        self._seen[path] += 1
        for fault in self._faults:
            if (
                fault.on == path
                and (fault.nth is None or number in fault.nth)
                and (fault.match is None or fault.match(body))
                and (fault.chance >= 1.0 or self._random.random() < fault.chance)
            ):
                return fault
        return None


def plan_from_json(text: str, seed: int = 0) -> FaultPlan:
    """`[{"kind": "die", "nth": [3]}]`, as given on the fake engine's command line."""
    return FaultPlan(
        *(Fault(**{**entry, "nth": tuple(entry["nth"]) if entry.get("nth") else None}) for entry in json.loads(text)),
        seed=seed,
    )


def spoil(answer: dict[str, Any], kind: Kind) -> dict[str, Any]:
    """Apply a fault of the third kind to a good answer; others leave it as it is. NaN becomes a bare `NaN` in JSON."""
    choice = answer["choices"][0]
    change = _CHANGES.get(kind)
    if change is not None:
        change(choice)
    if kind == "two_choices":
        answer["choices"].append(choice)
    return answer


def _set_logprob(value: float | None) -> Callable[[dict[str, Any]], None]:
    def change(choice: dict[str, Any]) -> None:
        choice["logprobs"]["content"][-1]["logprob"] = value

    return change


def _drop_logprob(choice: dict[str, Any]) -> None:
    choice["logprobs"]["content"].pop()


def _shift_logprobs(choice: dict[str, Any]) -> None:
    for entry in choice["logprobs"]["content"]:
        entry["token_id"] += 1


def _short_versions(choice: dict[str, Any]) -> None:
    choice["weight_versions"][-1]["end"] -= 1


def _foreign_version(choice: dict[str, Any]) -> None:
    choice["weight_versions"][-1]["version"] = "default"


def _empty(choice: dict[str, Any]) -> None:
    choice.update(token_ids=[], logprobs={"content": []}, weight_versions=[])


def _wild_token(choice: dict[str, Any]) -> None:
    choice["token_ids"][-1] = choice["logprobs"]["content"][-1]["token_id"] = 10**6


def _set(**fields: Any) -> Callable[[dict[str, Any]], None]:
    return lambda choice: choice.update(fields)


_CHANGES: dict[str, Callable[[dict[str, Any]], None]] = {
    "null_logprob": _set_logprob(None),
    "nan_logprob": _set_logprob(float("nan")),
    "absent_logprob": _set_logprob(-9999.0),
    "positive_logprob": _set_logprob(0.5),
    "missing_logprobs": _set(logprobs=None),
    "missing_logprob": _drop_logprob,
    "shifted_logprobs": _shift_logprobs,
    "missing_token_ids": _set(token_ids=None),
    "missing_versions": _set(weight_versions=None),
    "short_versions": _short_versions,
    "foreign_version": _foreign_version,
    "empty": _empty,
    "wild_token": _wild_token,
    "abort": _set(finish_reason="abort"),
    "unknown_finish": _set(finish_reason="repetition"),
}
