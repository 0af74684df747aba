"""Numbers as people, models and GSM8K write them."""

from fractions import Fraction

import pytest

from asyncgrpo.rewards.builtin import NumberMatch, number_match
from asyncgrpo.rewards.builtin.number import answer_of
from asyncgrpo.rewards.values import BadValue


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("so 2 + 2\n#### 1,234", 1234),
        ("#### -5", -5),
        ("#### 18 dollars for 2 days", 18),
        ("#### $1,234.50\nand 7 more", Fraction("1234.5")),
        ("####", None),
        ("it is 42.", 42),
        ("first 7, then 8", 8),
        ("100, 200", 200),
        ("1,234,567 people", 1234567),
        (r"\boxed{1{,}000}", 1000),
        (r"\boxed{1\,000\,000}", 1000000),
        ("1\u202f234", 1234),
        (r"\boxed{4} and \boxed{5} of 6", 5),
        (r"\boxed{\frac{3}{4}} or 9", Fraction(3, 4)),
        (r"\boxed{\text{none}} of 9", None),
        (r"\boxed{x = \dfrac{1}{2}", Fraction(1, 2)),
        ("3/4 of it", Fraction(3, 4)),
        ("12-5", 5),
        ("x=-5", -5),
        ("\u22123", -3),
        ("-$20", -20),
        ("- 5 apples", 5),
        ("50%", 50),
        (".5", Fraction(1, 2)),
        ("0.50", Fraction(1, 2)),
        ("1.5e3", 1500),
        ("10^6", 10**6),
        ("2**{10}", 1024),
        ("25 cm^2", 25),
        ("25 cm^{2}", 25),
        ("x2 is 3", 3),
        ("10^{999999}", None),
        ("1/0", None),
        ("9" * 5000, None),
        ("", None),
        ("none", None),
    ],
)
def test_the_number_of_an_answer(text: str, number: Fraction | int | None) -> None:
    assert answer_of(text) == number


def test_scores_and_rows_without_a_number() -> None:
    reward = NumberMatch(answer_column="answer")
    texts = ["it is 1234", "1,234.0", r"\boxed{12}", "none", ""]
    assert reward(completions=texts, answer=["so 2 + 2\n#### 1,234"] * 5) == [1.0, 1.0, 0.0, 0.0, 0.0]
    assert number_match(completions=["5"] * 4, solution=[5, 5.0, None, "five"]) == [1.0, 1.0, None, None]
    chat = [[{"role": "user", "content": "7"}, {"role": "assistant", "content": "8"}, {"role": "tool", "content": "9"}]]
    assert number_match(completions=chat, solution=["8"]) == [1.0]
    with pytest.raises(BadValue, match="column 'solution' holds the bool True"):
        number_match(completions=["5"], solution=[True])
