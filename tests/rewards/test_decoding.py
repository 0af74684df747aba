"""Text by looking bytes up: the tokenizer's own, to the letter, or not used at all."""

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from asyncgrpo.rewards.decoding import decoder_of
from asyncgrpo.testing.tiny import make_tokenizer


class Counting(PreTrainedTokenizerFast):
    """Knows how often it was asked."""

    asked = 0

    def decode(self, *arguments: object, **options: object) -> str:
        self.asked += 1
        return super().decode(*arguments, **options)


def test_texts_are_those_of_the_tokenizer_whatever_the_bytes() -> None:
    tokenizer = make_tokenizer()
    text_of, random = decoder_of(tokenizer), np.random.default_rng(0)
    for length in (0, 1, 2, 7, 300):
        ids = random.integers(0, len(tokenizer), length).astype(np.int32)  # mostly no UTF-8
        assert text_of(ids) == tokenizer.decode(ids, skip_special_tokens=True)
    assert text_of(np.array(tokenizer("naïve 東京 🎉\n")["input_ids"], np.int32)) == "naïve 東京 🎉\n"


def test_special_and_unknown_tokens_have_no_text_and_added_ones_have() -> None:
    tokenizer = make_tokenizer()
    tokenizer.add_tokens(["<tool>", "日本"])
    tokenizer.add_tokens([AddedToken("<hidden>", special=True)], special_tokens=True)
    text_of = decoder_of(tokenizer)
    tool, other, hidden = tokenizer.convert_tokens_to_ids(["<tool>", "日本", "<hidden>"])
    [a] = tokenizer("a")["input_ids"]
    ids = np.array([a, tool, tokenizer.eos_token_id, hidden, other, 60_000, a], np.int32)
    assert text_of(ids) == "a<tool>日本a" == tokenizer.decode(ids, skip_special_tokens=True)


def test_a_byte_level_tokenizer_is_not_asked_again() -> None:
    tokenizer = Counting(tokenizer_object=make_tokenizer().backend_tokenizer, eos_token="<|im_end|>")
    text_of = decoder_of(tokenizer)
    asked = tokenizer.asked
    [a] = tokenizer("a")["input_ids"]
    assert text_of(np.array([a, a], np.int32)) == "aa"
    assert tokenizer.asked == asked


def test_another_kind_of_tokenizer_decodes_itself() -> None:
    words = Tokenizer(models.WordLevel(vocab={"the": 0, "end": 1}, unk_token="the"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words)
    assert decoder_of(tokenizer)(np.array([0, 1], np.int32)) == "the end"


def test_a_byte_level_tokenizer_that_decodes_in_its_own_way_is_taken_at_its_word() -> None:
    class Loud(PreTrainedTokenizerFast):
        def decode(self, *arguments: object, **options: object) -> str:
            return super().decode(*arguments, **options).upper()

    backend = make_tokenizer().backend_tokenizer
    assert isinstance(backend.decoder, decoders.ByteLevel)
    tokenizer = Loud(tokenizer_object=backend)
    [a] = tokenizer("a")["input_ids"]
    assert decoder_of(tokenizer)(np.array([a], np.int32)) == "A"
