"""Tools: called at once, within deadlines, answered whatever happens; and shown to the model by its template."""

import asyncio
import logging
import threading
from pathlib import Path
from typing import Any

import pytest
from turn_cases import CHAT, Model, make_config, make_player, prompt_of, spans

from asyncgrpo.environments import tools as tools_module
from asyncgrpo.environments.building import find_source
from asyncgrpo.environments.player import Player
from asyncgrpo.errors import ConfigError
from asyncgrpo.testing.tiny import make_tokenizer

TEMPLATE = (
    "{% if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: the first
        b: the second
    """
    return a + b


async def shout(text: str) -> str:
    """Say it loudly.

    Args:
        text: what
    """
    await asyncio.sleep(0)
    return text.upper()


def sleepy() -> str:
    """Sleep."""
    threading.Event().wait(3)
    return "awake"


def player_of(*tools: Any, factory: Any = None, **settings: Any) -> Player:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = TEMPLATE
    return make_player(factory, tools=tools, tokenizer=tokenizer, max_tokens=1000, **settings)


def call(name: str, **arguments: Any) -> str:
    return f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>'.replace("'", '"')


async def answers(player: Player, *said: str) -> list[str]:
    """What the tools said to the first answer."""
    played = await player.play(prompt_of(), Model(*said, "done"))
    assert played.messages is not None
    return [message["content"] for message in played.messages if message["role"] == "tool"]


async def test_calls_are_answered_in_messages_and_the_last_answer_has_none() -> None:
    said = call("add", a=1, b=2) + call("shout", text="hey")
    played = await player_of(add, shout).play(prompt_of(), Model(said, "It is 3."))
    calls = [
        {"type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": 2}}},
        {"type": "function", "function": {"name": "shout", "arguments": {"text": "hey"}}},
    ]
    assert played.messages == (
        {"role": "assistant", "content": said, "tool_calls": calls},
        {"role": "tool", "name": "add", "content": "3", "tool_call_id": "000000001"},
        {"role": "tool", "name": "shout", "content": "HEY", "tool_call_id": "000000002"},
        {"role": "assistant", "content": "It is 3."},
    )
    assert spans(played.completion) == [
        (said + "<|im_end|>", True),
        ("\n<|im_start|>tool\n3<|im_end|>\n<|im_start|>tool\nHEY<|im_end|>\n<|im_start|>assistant\n", False),
        ("It is 3.<|im_end|>", True),
    ]
    assert (played.completion.finish_reason, played.reward, played.turns) == ("stop", None, 2)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (call("subtract", a=1), "there is no tool 'subtract'; the tools are add, sleepy"),
        (call("add", a=1), "TypeError: add() missing 1 required positional argument: 'b'"),
        (call("add", a=1, b="x"), "TypeError: unsupported operand"),
        ("<tool_call>add(1, 2)</tool_call>", "the tool call is no JSON of the form"),
        (call("sleepy"), "took longer than 0.2 s (environment.step_timeout)"),
    ],
)
async def test_calls_that_go_wrong_are_told_to_the_model(said: str, expected: str) -> None:
    (answer,) = await answers(player_of(add, sleepy, step_timeout=0.2), said)
    assert answer.startswith('{"error": ') and expected in answer


async def test_calls_of_an_answer_run_at_once() -> None:
    both = threading.Barrier(2, timeout=10)

    def meet(who: str) -> str:
        """Meet the other.

        Args:
            who: me
        """
        both.wait()
        return who

    assert await answers(player_of(meet), call("meet", who="a") + call("meet", who="b")) == ["a", "b"]


async def test_calls_in_an_answer_that_is_cut_are_not_run() -> None:
    ran = []

    def count() -> int:
        """Count."""
        ran.append(1)
        return len(ran)

    played = await player_of(count).play(prompt_of(), Model((call("count"), "length")))
    assert (ran, played.completion.finish_reason) == ([], "length")


async def test_the_first_failure_of_a_kind_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    tools_module._seen.clear()
    player = player_of(add)
    for _ in range(2):
        await answers(player, call("add", a=1))
    failures = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(failures) == 1
    assert "tool 'add' failed, which the model is told: TypeError" in failures[0].getMessage()


async def test_the_model_is_not_told_where_files_lie(caplog: pytest.LogCaptureFixture) -> None:
    tools_module._seen.clear()

    def broken() -> str:
        """Break."""
        raise ValueError("out of order")

    assert await answers(player_of(broken), call("broken")) == ['{"error": "ValueError: out of order"}']
    assert f"ValueError: out of order ({__file__}:" in caplog.text


async def test_results_are_written_out_off_the_event_loop() -> None:
    class Odd:
        def __str__(self) -> str:
            return str(threading.current_thread() is threading.main_thread())

    class Worse:
        def __str__(self) -> str:
            raise ValueError("no text")

    def odd() -> Any:
        """Be odd."""
        return Odd()

    def worse() -> Any:
        """Be worse."""
        return Worse()

    said = await answers(player_of(odd, worse), call("odd") + call("worse"))
    assert said == ["False", '{"error": "ValueError: no text"}']


def test_tools_that_are_waited_for_serve_one_run_after_the_other() -> None:
    def slow() -> str:
        """Be slow."""
        threading.Event().wait(0.02)
        return "done"

    player = player_of(slow, max_concurrency=1)

    async def play() -> list[str]:
        async with asyncio.timeout(20):
            return await answers(player, call("slow") * 3)

    assert [asyncio.run(play()) for _ in range(2)] == [["done"] * 3] * 2


class Counter:
    """As TRL's environments: `reset`, `get_reward`, and public methods that are tools."""

    def __init__(self, start: int = 0) -> None:
        self.start = start

    def reset(self, step: int) -> str:
        self.total, self.step_size = self.start, step
        return f" It counts by {step}."

    def count(self, times: int) -> int:
        """Count on.

        Args:
            times: how often
        """
        self.total += times * self.step_size
        return self.total

    def get_reward(self) -> float:
        return float(self.total)

    def _hidden(self) -> None: ...


async def test_public_methods_of_an_object_are_tools_on_its_own_state() -> None:
    player = player_of(add, factory=Counter, arguments={"start": 10})
    said = (call("count", times=2), call("add", a=1, b=1), call("count", times=1), "done")
    played = await asyncio.gather(*(player.play(prompt_of(step=step), Model(*said)) for step in (1, 5)))
    assert [each.reward for each in played] == [13.0, 25.0]
    assert played[1].prompt.prompt == [{"role": "user", "content": "Guess my number. It counts by 5."}]
    assert played[1].messages is not None
    assert [m["content"] for m in played[1].messages if m["role"] == "tool"] == ["20", "2", "25"]


def test_tools_reach_the_template_with_their_descriptions() -> None:
    player = player_of(add, factory=Counter)
    shown = make_tokenizer().decode(player.encode(CHAT, 0))
    assert '"name": "add", "description": "Add two numbers.", "parameters": {"type": "object", "properties": ' in shown
    assert '"count"' in shown and "how often" in shown and "self" not in shown
    assert "_hidden" not in shown and "get_reward" not in shown


def test_tools_by_path_with_names_and_deadlines(tmp_path: Path) -> None:
    file = tmp_path / "my_tools.py"
    file.write_text('def now() -> str:\n    """The time."""\n    return "noon"\n')
    source = find_source(make_config(tools=[{"path": f"{file}:now", "name": "clock", "timeout": 2.5}]))
    assert source is not None
    (tool,) = source.tools
    assert (tool.name, tool.run.timeout, tool.call(), tool.schema["function"]["name"]) == (
        "clock",
        2.5,
        "noon",
        "clock",
    )


def undescribed(a, b):  # type: ignore[no-untyped-def]
    return a


def by_place(a: int, /) -> int:
    """Add.

    Args:
        a: A number.
    """
    return a


def spread(*a: int) -> int:
    """Add.

    Args:
        a: Numbers.
    """
    return sum(a)


def test_tools_that_cannot_be_called_by_name_are_refused() -> None:
    with pytest.raises(ConfigError, match="tool 'by_place' takes 'a' by its place, and the model names its arguments"):
        player_of(by_place)
    with pytest.raises(ConfigError, match=r"tool 'spread' takes '\*a' by its place"):
        player_of(spread)
    with pytest.raises(ConfigError, match="tool: expected a function, found the int 3"):
        player_of(3)


def test_tools_that_cannot_be_used_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"tool 'undescribed': its description for the model cannot be made: .*Args:"):
        player_of(undescribed)
    with pytest.raises(ConfigError, match="two tools are called 'add'"):
        player_of(add, add)
    with pytest.raises(ConfigError, match=r"the chat template does not show tools to the model \(add\)"):
        make_player(None, tools=[add])
    with pytest.raises(ConfigError, match=r"tools \(add\) are shown by a chat template, and the prompts are texts"):
        make_player(None, "2+2=", tools=[add])


def test_a_prompt_that_names_the_tools_itself_will_do() -> None:
    make_player(None, ({"role": "user", "content": "Call add by <tool_call>."},), tools=[add])


def test_marks_of_calls_that_are_special_tokens_are_refused() -> None:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = TEMPLATE
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<tool_call>"]})
    with pytest.raises(ConfigError, match=r"<tool_call> is a special token of this tokenizer"):
        make_player(None, tools=[add], tokenizer=tokenizer)
