"""What stands between two answers, in chat templates of several kinds, and the templates that are refused."""

from collections.abc import Collection
from typing import Any

import pytest
from turn_cases import END_ID, TOKENIZER, ids_of, make_player

from asyncgrpo.environments.joining import ChatJoin, TextJoin
from asyncgrpo.errors import ConfigError
from asyncgrpo.testing.tiny import CHAT_TEMPLATE, make_tokenizer

HEADER = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
SAID = [{"role": "user", "content": "and?"}]

THINKING = """{% set ns = namespace(last=-1) %}{% for m in messages %}{% if m.role == 'user' %}
{%- set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- for m in messages %}<|im_start|>{{ m.role }}
{% if m.role == 'assistant' and loop.index0 > ns.last and loop.last %}<think>

</think>

{% endif %}{{ m.content.split('</think>')[-1] }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is defined and enable_thinking is false %}<think>

</think>

{% endif %}{% endif %}"""
"""As Qwen3's: an answer is shown with an empty thought where it is the last message only, so that what precedes it
differs between two renderings, of which one would be no prefix of the other."""

TOOLS_GROUPED = """{% for m in messages %}{% if m.role == 'tool' %}
{%- if messages[loop.index0 - 1].role != 'tool' %}<|im_start|>user{% endif %}{{ '\n' }}<tool_response>
{{ m.content }}
</tool_response>{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}<|im_end|>
{% endif %}{% else %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
"""As Qwen2.5's: neighbouring answers of tools are one message of the user."""


def join_of(template: str, special: Collection[str] = (), **options: Any) -> tuple[ChatJoin, Any]:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = template
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", *special]})
    return ChatJoin(tokenizer, options), tokenizer


def between(join: tuple[ChatJoin, Any], said: Any, last: str = "<|im_end|>") -> str:
    chat, tokenizer = join
    chat.check({"user"}, {END_ID})
    return str(tokenizer.decode(chat.given(said, tokenizer.convert_tokens_to_ids(last))))


@pytest.mark.parametrize(
    ("template", "options", "expected"),
    [
        (CHAT_TEMPLATE, {}, "\n<|im_start|>user\nand?<|im_end|>\n<|im_start|>assistant\n"),
        (THINKING, {}, "\n<|im_start|>user\nand?<|im_end|>\n<|im_start|>assistant\n"),
        (
            THINKING,
            {"enable_thinking": False},
            "\n<|im_start|>user\nand?<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
        ),
    ],
)
def test_between_two_answers(template: str, options: dict[str, Any], expected: str) -> None:
    join = join_of(template, **options)
    assert between(join, SAID) == between(join, "and?") == expected


def test_answers_of_tools_are_rendered_together() -> None:
    chat, tokenizer = join_of(TOOLS_GROUPED)
    chat.check({"tool"}, {END_ID})
    messages = [{"role": "tool", "name": "f", "content": each} for each in ("1", "2")]
    assert tokenizer.decode(chat.given(messages, END_ID)) == (
        "\n<|im_start|>user\n<tool_response>\n1\n</tool_response>\n<tool_response>\n2\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_of_several_tokens_that_end_an_answer_those_that_were_sampled_are_left_out() -> None:
    template = CHAT_TEMPLATE.replace("{{ message['content'] }}<|im_end|>", "{{ message['content'] }}<|end|><|im_end|>")
    join = join_of(template, ["<|end|>"])
    rest = "\n<|im_start|>user\nand?<|end|><|im_end|>\n<|im_start|>assistant\n"
    assert between(join, SAID) == rest
    assert between(join, SAID, "<|end|>") == "<|im_end|>" + rest
    assert between(join, SAID, "a") == "<|end|><|im_end|>" + rest


def test_a_template_whose_next_header_ends_the_answer() -> None:
    """As GLM's: the model stops by beginning the next message."""
    template = "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}{% endfor %}"
    template += "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
    chat, tokenizer = join_of(template, ["<|user|>", "<|assistant|>", "<|tool|>"])
    user = tokenizer.convert_tokens_to_ids("<|user|>")
    chat.check({"user"}, {user})
    assert tokenizer.decode(chat.given(SAID, user)) == "\nand?<|assistant|>\n"


def test_text_is_encoded_without_special_tokens() -> None:
    assert TextJoin(TOKENIZER).given("and?", 5) == ids_of("and?")
    with pytest.raises(ValueError, match="the prompts are texts, so messages must be text, too"):
        TextJoin(TOKENIZER).given(SAID, 5)


PREFIX = "{% for m in messages %}<|im_start|>{{ m.role }}\n"


@pytest.mark.parametrize(
    ("template", "roles", "message"),
    [
        (
            PREFIX + "{{ m.content | upper }}<|im_end|>{% endfor %}" + HEADER,
            {"user"},
            "the chat template leaves an answer out, or changes it; use a model with another template",
        ),
        (
            PREFIX + "{{ m.content }}<|im_end|>{{ loop.index }}{% endfor %}" + HEADER,
            {"user"},
            "renders what follows an answer differently in a longer conversation",
        ),
        (
            PREFIX + "{{ m.content }}\n{% endfor %}" + HEADER,
            {"user"},
            r"ends an answer with '\\n', which is no special token",
        ),
        (
            "{% for m in messages %}{% if m.role != 'tool' %}<|im_start|>{{ m.content }}<|im_end|>{% endif %}"
            "{% endfor %}",
            {"tool"},
            "does not show messages of the role 'tool'",
        ),
        (
            PREFIX + "{% if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}{{ m.content }}<|im_end|>"
            "{% endfor %}",
            {"tool"},
            "refuses messages of the roles user, assistant, tool: no tools",
        ),
        (
            CHAT_TEMPLATE.replace("<|im_end|>", "<|im_start|>"),
            {"user"},
            r"ends an answer with '<\|im_start\|>' \(token 1\), at which engines do not stop; add it: generation.stop",
        ),
    ],
)
def test_templates_that_cannot_be_continued_are_refused(template: str, roles: set[str], message: str) -> None:
    chat, _ = join_of(template)
    with pytest.raises(ConfigError, match=message):
        chat.check(roles, {END_ID})


def test_a_refusal_comes_before_a_run_starts() -> None:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = PREFIX + "{{ m.content }}\n{% endfor %}" + HEADER

    class Quiet:
        def step(self, answer: Any) -> None: ...

    with pytest.raises(ConfigError, match="no special token"):
        make_player(Quiet, tokenizer=tokenizer)
