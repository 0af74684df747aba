import io
import re

import pytest

from asyncgrpo.observe.progress import Progress, format_duration, format_step


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class AsciiStream(io.TextIOWrapper):
    def __init__(self) -> None:
        super().__init__(io.BytesIO(), encoding="ascii")


RECORD = {
    "step": 3,
    "reward_mean": -0.512,
    "reward_stddev": 0.21,
    "generated_tokens_per_second": 411.6,
    "staleness_mean": 0.58,
    "staleness_max": 1,
    "step_seconds": 21.3,
    "waiting_ratio": 0.12,
    "verdict": "training-bound",
}
LINE = "step  3/14  reward -0.512 ±0.210  412 tok/s  staleness 0.6 (max 1)  step 21.3s  waiting 12%  training-bound"


def test_step_on_one_line() -> None:
    assert format_step(RECORD, 14) == LINE


def test_values_a_step_has_not_are_dashes() -> None:
    line = format_step(RECORD | {"reward_mean": float("nan"), "reward_stddev": None}, 14)
    assert line.startswith("step  3/14  reward - ±-  412 tok/s")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59.4, "59 s"), (302, "5 min 02 s"), (3599.6, "1 h 00 min"), (11220, "3 h 07 min")],
)
def test_durations(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_plain_output_never_falls_silent() -> None:
    stream, clock = io.StringIO(), Clock()
    with Progress(14, stream, clock) as progress:
        with progress.phase("starting 2 engines"):
            clock.now = 14.0
            progress.tick()
            clock.now = 15.0
            progress.tick()
            progress.tick()
            clock.now = 34.0
        progress.watch(lambda: "buffer 3 of 8 groups, 12 requests in flight")
        clock.now = 50.0
        progress.tick()
        clock.now = 54.0
        progress.step(RECORD)
        clock.now = 70.0
        progress.tick()
    assert stream.getvalue().splitlines() == [
        "starting 2 engines …",
        "starting 2 engines … 15 s",
        "starting 2 engines: 34 s",
        "step 1/14 … buffer 3 of 8 groups, 12 requests in flight",
        LINE,
        "step 4/14 … buffer 3 of 8 groups, 12 requests in flight, about 3 min 24 s left",
    ]


def test_phase_that_fails_says_so() -> None:
    stream, clock = io.StringIO(), Clock()
    with pytest.raises(KeyError), Progress(1, stream, clock) as progress, progress.phase("probe"):
        clock.now = 2.0
        raise KeyError
    assert stream.getvalue().splitlines() == ["probe …", "probe: stopped after 2 s"]


def test_state_that_changes_while_it_is_read_is_shown_as_before() -> None:
    answers = iter(["buffer 1", RuntimeError("dictionary changed size during iteration")])

    def describe() -> str:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    stream, clock = io.StringIO(), Clock()
    with Progress(2, stream, clock) as progress:
        progress.watch(describe)
        for clock.now in (20.0, 40.0):
            progress.tick()
    assert stream.getvalue().splitlines() == ["step 1/2 … buffer 1"] * 2


def test_terminal_shows_a_live_line_under_the_steps() -> None:
    stream = Terminal()
    with Progress(14, stream) as progress:
        progress.watch(lambda: "buffer 3 of 8 groups")
        progress.step(RECORD)
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", stream.getvalue())
    assert LINE in re.split(r"[\r\n]+", shown)
    assert "step 4/14 … buffer 3 of 8 groups, about 0 s left" in shown


def test_stream_without_the_signs_gets_replacements() -> None:
    stream = AsciiStream()
    with Progress(14, stream) as progress:
        progress.step(RECORD)
    assert b"reward -0.512 ?0.210  412 tok/s" in stream.buffer.getvalue()  # type: ignore[attr-defined]


def test_words_of_others_do_not_move_the_terminal() -> None:
    stream = io.StringIO()
    with Progress(14, stream) as progress:
        progress.note("the judge said \x1b[2J\x9b31m")
    assert r"the judge said \x1b[2J\x9b31m" in stream.getvalue()


class ClosedPipe(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError(32, "Broken pipe")


def test_output_that_nobody_reads_any_more_does_not_end_the_run(caplog: pytest.LogCaptureFixture) -> None:
    with Progress(14, stream=ClosedPipe()) as progress:
        with progress.phase("starting"):
            pass
        progress.step(RECORD)
    assert [record.message for record in caplog.records] == [
        "nothing more is shown: output failed: [Errno 32] Broken pipe"
    ]
