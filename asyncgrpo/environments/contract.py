"""What an environment is: one instance per sample, asked after every answer of the model.

    class Guessing:
        def reset(self, number):            # columns of the dataset's row, those that it names
            self.number = number
        def step(self, answer):
            if str(self.number) in answer.text:
                return Turn(done=True, reward=1.0)
            return Turn(messages="No. Guess again.", reward=0.0)

Every method may be `async def`; those that are not run in threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from asyncgrpo.types import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the model said in one turn."""

    text: str
    """Without special tokens."""
    turn: int
    """1 for the first."""
    is_cut: bool = False
    """No more tokens were allowed: the text may end anywhere, and it is the last turn whatever the environment says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What the environment says to an answer."""

    messages: Sequence[Message] | str = ()
    """What the model reads next: chat messages, or text, which is a message of the user if the prompt is a chat."""
    done: bool = False
    """The trajectory is over; `messages` are then not given any more."""
    reward: float | None = None
    """Of this turn; see `environment.turn_rewards`."""
    answer: Message | None = None
    """How the answer stands among the messages that reward functions see. Absent: as its text."""


class Environment(Protocol):
    """Besides, it may have `get_reward()`: called at the end of every trajectory, a cut one too, its number takes the
    place of the turns' rewards; and `close()`, called once, whatever happened."""

    def reset(self, **columns: Any) -> Any:
        """Begin, with the row's columns and `prompt`, as far as they are named here.

        Returns None (or an awaitable of it), or what is put behind the dataset's prompt: messages; or text, which is
        added to the last message. All samples of a prompt must get the same.
        """

    def step(self, answer: Answer) -> Any:
        """The Turn, or an awaitable of it."""
