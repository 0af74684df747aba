"""What a prompt loses that is too long: as little as can be, and only what the user said last."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncgrpo.prompts.fitting import listed, without_beginning, without_fewest
from asyncgrpo.types import PromptText


def letters(prompt: PromptText) -> int:
    """A tokenizer with a token for every character, and two for every message."""
    if isinstance(prompt, str):
        return len(prompt)
    return sum(2 + len(message.get("content") or "") for message in prompt)


@given(st.text(min_size=1, max_size=50), st.integers(1, 60))
def test_a_text_loses_as_little_as_it_must(text: str, limit: int) -> None:
    if len(text) <= limit:
        return
    fewest = without_fewest(text, letters, limit)
    assert fewest is not None
    assert without_beginning(text, fewest) == text[-limit:]


@given(st.text(min_size=1, max_size=30), st.text(max_size=30), st.integers(1, 60))
def test_only_the_last_user_message_is_cut(said: str, before: str, limit: int) -> None:
    chat = [
        {"role": "user", "content": before},
        {"role": "user", "content": said, "name": "ann"},
        {"role": "tool", "content": "t"},
    ]
    if letters(chat) <= limit:
        return
    fewest, others = without_fewest(chat, letters, limit), 7 + len(before)
    if others + 1 > limit:
        assert fewest is None
        return
    assert fewest is not None
    cut = without_beginning(chat, fewest)
    assert cut == [chat[0], {"role": "user", "content": said[-(limit - others) :], "name": "ann"}, chat[2]]
    assert letters(cut) == limit


@pytest.mark.parametrize(
    "chat",
    [
        [{"role": "system", "content": "x" * 50}],
        [{"role": "user", "content": [{"type": "text", "text": "x" * 50}]}],
        [{"role": "user", "content": None}, {"role": "tool", "content": "x" * 50}],
    ],
)
def test_chats_in_which_nothing_can_be_cut(chat: PromptText) -> None:
    assert without_fewest(chat, letters, 10) is None


def test_rows_are_named() -> None:
    assert (listed([4]), listed([4, 7]), listed([1, 2, 3])) == ("row 4", "rows 4 and 7", "rows 1, 2 and 3")
    assert listed(range(25)) == f"rows {', '.join(map(str, range(20)))} and 5 more"
