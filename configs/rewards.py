"""Rewards of the shipped configurations. Each is called as `f(prompts, completions, completion_ids, **columns)`."""

import re


def repeats_numbers(completions, answer, **columns):
    """How much of the list of numbers was repeated, in order and alone: 1 exactly right, -1 nothing right.

    The share is of the longer list, and words count as items, so neither silence nor chatter helps.
    """
    found = [re.findall(r"\d+|[^\W\d]+", _text(completion)) for completion in completions]
    return [_overlap(items, [str(number) for number in wanted]) for items, wanted in zip(found, answer, strict=True)]


def numbers_repeated(completions, answer, **columns):
    """The same as a share: 1 exactly right, 0 nothing right. To evaluate by."""
    return [(reward + 1) / 2 for reward in repeats_numbers(completions, answer)]


def _overlap(found, wanted):
    same = 0
    while same < min(len(found), len(wanted)) and found[same] == wanted[same]:
        same += 1
    return 2 * same / max(len(found), len(wanted)) - 1


def _text(completion):
    """Conversational prompts give a list with the assistant's message, plain ones a string."""
    return completion if isinstance(completion, str) else completion[-1]["content"]
