"""Rewards that come along: in a configuration by their short names, in Python as objects.

rewards: [{path: accuracy}, {path: repetition, arguments: {ngram_size: 3}}]
reward_funcs=[accuracy, Repetition(ngram_size=3)]
"""

from asyncgrpo.rewards.builtin.base import Builtin
from asyncgrpo.rewards.builtin.code_execution import CodeExecution
from asyncgrpo.rewards.builtin.cosine_length import Cosine
from asyncgrpo.rewards.builtin.exact import ExactMatch
from asyncgrpo.rewards.builtin.math_accuracy import Accuracy, ReasoningAccuracy
from asyncgrpo.rewards.builtin.ngrams import Repetition
from asyncgrpo.rewards.builtin.number import NumberMatch
from asyncgrpo.rewards.builtin.overlong import SoftOverlong
from asyncgrpo.rewards.builtin.tasks import ReasoningGym
from asyncgrpo.rewards.builtin.think_tags import ThinkFormat

BUILTIN: dict[str, type[Builtin]] = {
    cls.short: cls
    for cls in (
        Accuracy,
        ReasoningAccuracy,
        NumberMatch,
        ExactMatch,
        CodeExecution,
        ThinkFormat,
        Cosine,
        Repetition,
        SoftOverlong,
        ReasoningGym,
    )
}
"""By short name."""

accuracy = Accuracy()
reasoning_accuracy = ReasoningAccuracy()
number_match = NumberMatch()
exact_match = ExactMatch()
code_execution = CodeExecution()
think_format = ThinkFormat()
cosine = Cosine()
repetition = Repetition()
reasoning_gym = ReasoningGym()

__all__ = [
    "BUILTIN",
    "Accuracy",
    "Builtin",
    "CodeExecution",
    "Cosine",
    "ExactMatch",
    "NumberMatch",
    "ReasoningAccuracy",
    "ReasoningGym",
    "Repetition",
    "SoftOverlong",
    "ThinkFormat",
    "accuracy",
    "code_execution",
    "cosine",
    "exact_match",
    "number_match",
    "reasoning_accuracy",
    "reasoning_gym",
    "repetition",
    "think_format",
]
