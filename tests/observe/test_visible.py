import pytest

from asyncgrpo.observe.visible import one_line, visible


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain\n\tand naïve 你好 👩‍💻", "plain\n\tand naïve 你好 👩‍💻"),
        ("\x1b[2J\x1b]0;title\x07", r"\x1b[2J\x1b]0;title\x07"),
        ("\x9b31m", r"\x9b31m"),  # ESC [ as one character
        ("over\rwritten\x08\x7f", r"over\x0dwritten\x08\x7f"),
        ("a\u202eb\u2066c\u2028d", r"a\u202eb\u2066c\u2028d"),
        ("half \ud83d", r"half \ud83d"),
    ],
)
def test_what_moves_a_terminal_is_written_out(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_no_character_but_newline_and_tab_is_left_that_terminals_obey() -> None:
    everything = "".join(map(chr, range(0x110000)))
    left = {c for c in visible(everything) if ord(c) < 32 or 127 <= ord(c) < 160}
    assert left == {"\n", "\t"}


def test_one_line_keeps_both_ends() -> None:
    assert one_line("a\nb\tc\\n", 80) == r"a\nb\tc\\n"
    assert one_line("a" * 50 + "b" * 50, 23) == "a" * 10 + " … " + "b" * 10
