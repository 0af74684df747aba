"""Token ids, order, cursor and limits of the prompt stream."""

from dataclasses import replace
from typing import Any

import pytest
from datasets import Dataset

from asyncgrpo.config import RunConfig
from asyncgrpo.errors import ConfigError, DataError
from asyncgrpo.prompts import PromptStream, load_rows, load_tokenizer
from asyncgrpo.prompts.stream import Cursor
from asyncgrpo.prompts.table import Rows
from asyncgrpo.testing.tiny import make_tokenizer

TOKENIZER = make_tokenizer()


def stream(rows: list[dict[str, Any]], tokenizer: Any = TOKENIZER, **sections: Any) -> PromptStream:
    config = RunConfig.model_validate(sections)
    return PromptStream(load_rows(config, rows), tokenizer, config)


def numbered(count: int) -> list[dict[str, Any]]:
    return [{"prompt": f"p{i}", "answer": i} for i in range(count)]


def ids(prompts: PromptStream, count: int) -> list[str]:
    return [prompts.next().prompt_id for _ in range(count)]


def test_a_text_prompt_is_tokenised_as_it_is() -> None:
    prompt = stream([{"prompt": "2+2=", "answer": 4}]).next()
    assert prompt.prompt == "2+2="
    assert TOKENIZER.decode(prompt.token_ids) == "2+2="
    assert not prompt.is_conversational
    assert prompt.columns == {"answer": 4}
    assert (prompt.prompt_id, prompt.epoch, prompt.row) == ("0-0", 0, 0)


def test_a_chat_ends_with_the_header_of_the_answer() -> None:
    prompt = stream([{"prompt": [{"role": "user", "content": "hi", "name": None}]}]).next()
    assert TOKENIZER.decode(prompt.token_ids) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert prompt.prompt == [{"role": "user", "content": "hi"}]
    assert prompt.is_conversational


def test_the_system_prompt_leads_chats_and_makes_chats_of_texts() -> None:
    expected = "<|im_start|>system\nbrief<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    for given in ("hi", [{"role": "user", "content": "hi"}]):
        prompt = stream([{"prompt": given}], data={"system_prompt": "brief"}).next()
        assert TOKENIZER.decode(prompt.token_ids) == expected
        assert prompt.prompt == [{"role": "system", "content": "brief"}, {"role": "user", "content": "hi"}]


def test_the_given_tokenizer_and_template_arguments_are_used() -> None:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = "marker {{ mood }}: {{ messages[0].content }}"
    data = {"chat_template_kwargs": {"mood": "calm"}}
    prompt = stream([{"prompt": [{"role": "user", "content": "hi"}]}], tokenizer, data=data).next()
    assert tokenizer.decode(prompt.token_ids) == "marker calm: hi"


def test_special_tokens_in_the_prompt_survive() -> None:
    prompt = stream([{"prompt": "a<|im_end|>b"}]).next()
    assert prompt.token_ids[1] == TOKENIZER.convert_tokens_to_ids("<|im_end|>")


def test_another_prompt_column() -> None:
    prompt = stream([{"question": "q", "prompt": "unused"}], data={"prompt_column": "question"}).next()
    assert (prompt.prompt, prompt.columns) == ("q", {"prompt": "unused"})


def test_columns_named_like_the_contract_are_not_passed_on(caplog: pytest.LogCaptureFixture) -> None:
    prompt = stream([{"prompt": "a", "prompts": 1, "completions": 2, "completion_ids": 3, "answer": 4}]).next()
    assert prompt.columns == {"answer": 4}
    assert "prompts, completions, completion_ids" in caplog.text


def test_every_epoch_has_every_row_once_in_another_order() -> None:
    prompts = stream(numbered(20))
    epochs = [[prompts.next() for _ in range(20)] for _ in range(3)]
    for number, epoch in enumerate(epochs):
        assert sorted(prompt.row for prompt in epoch) == list(range(20))
        assert {prompt.epoch for prompt in epoch} == {number}
    orders = [[prompt.row for prompt in epoch] for epoch in epochs]
    assert orders[0] != orders[1] != orders[2] != orders[0]
    assert orders[0] != list(range(20))


def test_the_order_is_that_of_the_seed() -> None:
    first, again = (ids(stream(numbered(20), run={"seed": 1}), 50) for _ in range(2))
    assert first == again
    assert first != ids(stream(numbered(20), run={"seed": 2}), 50)


def test_without_shuffling_rows_come_as_they_are() -> None:
    assert ids(stream(numbered(2), data={"shuffle_dataset": False}), 5) == ["0-0", "0-1", "1-0", "1-1", "2-0"]


@pytest.mark.parametrize("taken", [0, 1, 6, 7, 16])
def test_a_cursor_is_all_that_a_resume_needs(taken: int) -> None:
    data = {"max_prompt_length": 3}
    rows = [*numbered(6), {"prompt": "too long", "answer": 0}]
    whole = ids(stream(rows, data=data), taken + 20)
    begun = stream(rows, data=data)
    ids(begun, taken)
    resumed = stream(rows, data=data)
    resumed.cursor = Cursor(*begun.cursor)
    assert ids(resumed, 20) == whole[taken:]


def test_prompts_beyond_the_limit_are_skipped_and_counted_never_cut() -> None:
    rows = [{"prompt": "x" * length, "answer": length} for length in (1, 9, 5, 6)]
    prompts = stream(rows, data={"max_prompt_length": 5})
    assert (prompts.prompts_per_epoch, prompts.skipped_per_epoch) == (2, 2)
    assert {len(prompts.next().token_ids) for _ in range(6)} == {1, 5}
    assert prompts.cursor.epoch in (2, 3)
    assert prompts.remarks == ["left out: 2 of 4 prompts have more than 5 tokens: rows 1 and 3 of train_dataset"]


def test_a_long_prompt_may_lose_its_beginning() -> None:
    rows = [{"prompt": "x" * length + "end", "answer": length} for length in (1, 9)]
    prompts = stream(rows, data={"max_prompt_length": 5, "long_prompts": "keep_tail", "shuffle_dataset": False})
    assert (prompts.prompts_per_epoch, prompts.skipped_per_epoch, prompts.shortened_per_epoch) == (2, 0, 1)
    assert [prompts.next().prompt for _ in range(4)] == ["xend", "xxend", "xend", "xxend"]
    assert prompts.remarks == ["shortened: 1 of 2 prompts have more than 5 tokens: row 1 of train_dataset"]


def test_a_shortened_chat_keeps_system_prompt_headers_and_the_header_of_the_answer() -> None:
    chat = [
        {"role": "user", "content": "first"},
        {"role": "assistant", "content": "yes?"},
        {"role": "user", "content": "a long story, and the question é?"},
    ]
    system, rest = "<|im_start|>system\nbe brief<|im_end|>\n", "<|im_end|>\n<|im_start|>assistant\n"
    before = f"{system}<|im_start|>user\nfirst<|im_end|>\n<|im_start|>assistant\nyes?<|im_end|>\n<|im_start|>user\n"
    limit = len(TOKENIZER(before + "question é?" + rest)["input_ids"])
    data = {"system_prompt": "be brief", "long_prompts": "keep_tail", "max_prompt_length": limit}
    for spare in (0, 1):  # é has two tokens, which are never torn apart
        prompt = stream([{"prompt": chat}], data=data | {"max_prompt_length": limit + spare}).next()
        assert TOKENIZER.decode(prompt.token_ids) == f"{before}{' ' * spare}question é?{rest}"
        assert prompt.prompt[-1] == {"role": "user", "content": f"{' ' * spare}question é?"}
    with pytest.raises(DataError, match="all 1 prompts are longer than 8 tokens"):
        stream([{"prompt": chat}], data=data | {"max_prompt_length": 8})


def test_a_shortened_prompt_is_the_same_wherever_it_is_asked_for() -> None:
    prompts = stream([{"prompt": "abcdef"}], data={"max_prompt_length": 3, "long_prompts": "keep_tail"})
    assert prompts.next().token_ids == prompts.prompt(0, 0).token_ids == tuple(TOKENIZER("def")["input_ids"])


def test_the_limit_follows_from_the_engine_when_not_set() -> None:
    sections = {"engines": {"max_model_len": 20}, "generation": {"max_completion_length": 17}}
    assert stream([{"prompt": "abc"}, {"prompt": "abcd"}], **sections).prompts_per_epoch == 1
    assert stream([{"prompt": "abc"}, {"prompt": "abcd"}]).limit is None


def test_the_order_does_not_depend_on_the_limit() -> None:
    rows = [{"prompt": "x" * (i + 1)} for i in range(20)]
    limited = ids(stream(rows, data={"max_prompt_length": 10}), 30)
    unlimited = [name for name in ids(stream(rows), 60) if int(name.split("-")[1]) < 10]
    assert limited == unlimited


def test_all_prompts_too_long() -> None:
    with pytest.raises(DataError, match=r"all 2 prompts are longer than 2 tokens \(the shortest has 3\)"):
        stream([{"prompt": "abc"}, {"prompt": "abcd"}], data={"max_prompt_length": 2})


def test_a_chat_without_a_template_is_refused_at_the_start() -> None:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = None
    with pytest.raises(DataError, match="the tokenizer has no chat template"):
        stream([{"prompt": [{"role": "user", "content": "hi"}]}], tokenizer)


def test_a_template_that_refuses_names_the_row() -> None:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(DataError, match="row 0: the chat template refuses the prompt: roles must alternate"):
        stream([{"prompt": [{"role": "user", "content": "hi"}]}], tokenizer)


def test_content_in_parts_is_taken_where_the_template_knows_it() -> None:
    rows = [{"prompt": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]}]
    with pytest.raises(DataError, match="row 0: the content of a message is a list of parts, which the chat template"):
        stream(rows)
    tokenizer = make_tokenizer()
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'][0]['text'] }}{% endfor %}:"
    assert TOKENIZER.decode(stream(rows, tokenizer).next().token_ids) == "hi:"


def test_load_tokenizer(tmp_path: Any) -> None:
    TOKENIZER.save_pretrained(tmp_path)
    loaded = load_tokenizer(RunConfig.model_validate({"model": {"path": str(tmp_path)}}))
    assert loaded("2+2=")["input_ids"] == TOKENIZER("2+2=")["input_ids"]


@pytest.mark.parametrize(
    ("path", "message"),
    [("", "model.path is not set"), ("/nowhere/model", "model.path=/nowhere/model: no such folder")],
)
def test_no_tokenizer_to_load(path: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_tokenizer(RunConfig.model_validate({"model": {"path": path}}))


def test_a_folder_without_a_tokenizer(tmp_path: Any) -> None:
    with pytest.raises(ConfigError, match="no tokenizer"):
        load_tokenizer(RunConfig.model_validate({"model": {"path": str(tmp_path)}}))


class Asked:
    """A dataset that knows which reads there were."""

    def __init__(self, rows: Any) -> None:
        self.rows, self.column_names = rows, rows.column_names
        self.reads: list[Any] = []

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, key: Any) -> Any:
        self.reads.append(key)
        return self.rows[key]


def test_rows_are_read_many_at_once_and_each_is_handed_out_once() -> None:
    config = RunConfig.model_validate({"data": {"shuffle_dataset": False}})
    rows = load_rows(config, [{"prompt": f"p{i}", "answer": [i]} for i in range(40)])
    asked = Asked(rows.sources[0].values)
    rows = Rows([replace(rows.sources[0], values=asked)], "prompt", mixed=False)
    prompts = PromptStream(rows, TOKENIZER, config)
    asked.reads.clear()
    [peeked] = prompts.peek(1)
    peeked.columns["answer"].append("changed by a reward function")
    found = [prompts.next() for _ in range(80)]
    assert [prompt.columns for prompt in found] == 2 * [{"answer": [i]} for i in range(40)]
    assert [len(read) for read in asked.reads] == [32, 32, 8, 32, 8]


def test_a_stream_that_gives_other_rows_is_noticed_by_a_resume() -> None:
    def streamed(rows: list[dict[str, Any]]) -> PromptStream:
        config = RunConfig.model_validate({"data": {"max_rows": 9, "shuffle_dataset": False}})
        return PromptStream(load_rows(config, Dataset.from_list(rows).to_iterable_dataset()), TOKENIZER, config)

    state = streamed(numbered(4)).state()
    streamed(numbered(4)).restore(state)
    other = streamed([*numbered(3), {"prompt": "p3", "answer": 7}])
    with pytest.raises(DataError, match="train_dataset gives other rows than when the checkpoint was saved"):
        other.restore(state)
    other.restore(state, allow_changed=True)
    assert other.next().prompt_id == "0-0"
