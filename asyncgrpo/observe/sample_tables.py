"""Recorded samples as rich shows them: a table, whole texts, and two versions side by side; or as plain values.

Everything that a model, a dataset or an engine wrote goes through `visible`, and into `Text`, which reads no markup.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import zip_longest
from typing import Any

from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from asyncgrpo.observe.browsing import Contrast
from asyncgrpo.observe.samples import RecordedSample, prompt_text
from asyncgrpo.observe.visible import one_line, visible

__all__ = ["as_table", "as_texts", "as_values", "side_by_side"]

_STYLES = {"trained": "green", "dropped": "red", "reissued": "yellow"}
_PREVIEW = 400
"""Most characters of a text in the table, which shows what its width lets it."""


def as_table(samples: Sequence[RecordedSample]) -> Table:
    """A line per sample. What is the same for all (fate, engine) stands below it instead of in a column."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold", expand=True)
    for name in ("step", "version", "prompt", "sample", "reward", "stale", "tokens"):
        table.add_column(name, justify="right", no_wrap=True)
    varying = {
        "end": [_text(sample.finish_reason) for sample in samples],
        "fate": [_fate(sample) for sample in samples],
        "engine": [_text(sample.engine) for sample in samples],
    }
    same = {name for name, texts in varying.items() if len({text.plain for text in texts}) == 1}
    columns = [name for name in varying if name not in same]
    for name in columns:
        table.add_column(name, no_wrap=True)
    table.add_column("completion", no_wrap=True, overflow="ellipsis", ratio=1, min_width=20)
    for index, sample in enumerate(samples):
        table.add_row(
            _number(sample.step),
            _versions(sample),
            _text(sample.prompt_id),
            f"{sample.group_id}/{sample.sample}",
            _decimal(sample.reward),
            _number(sample.staleness),
            str(sample.tokens),
            *(varying[name][index] for name in columns),
            Text(one_line(sample.completion, _PREVIEW)),
        )
    if same:
        table.caption = Text(", ".join(f"{name} {varying[name][0].plain}" for name in varying if name in same))
        table.caption_justify = "left"
    return table


def as_texts(samples: Sequence[RecordedSample]) -> Iterator[RenderableType]:
    """Everything about each sample; a prompt is shown once for neighbours that share it."""
    shown = None
    for sample in samples:
        if sample.prompt != shown:
            shown = sample.prompt
            yield _prompt(sample)
        given = f" ({sample.given} of them given, not sampled)" if sample.given else ""
        facts = Text.assemble(
            "step ", _number(sample.step), ", version ", _versions(sample), ", sample ",
            f"{sample.group_id}/{sample.sample}", ", ", _fate(sample), ", staleness ", _number(sample.staleness),
            f", {sample.tokens} tokens{given} in {sample.seconds:.1f} s from ", _text(sample.engine), ", ended by ",
            _text(sample.finish_reason), style="dim",
        )  # fmt: skip
        rewards = ", ".join(f"{visible(name)} {_decimal(value)}" for name, value in sample.rewards.items())
        line = Text(f"reward {_decimal(sample.reward)} ({rewards}), advantage {_decimal(sample.advantage)}")
        logged = [Text(visible(f"{name}: {value}")) for name, value in sample.extra.items()]
        yield Group(facts, line, *logged, Text(visible(sample.completion)), Text())


def side_by_side(contrast: Contrast, before: int, after: int) -> RenderableType:
    """The completions of two versions of one prompt, the best of each beside each other."""
    table = Table(show_lines=True, expand=True, header_style="bold")
    for version, samples in ((before, contrast.before), (after, contrast.after)):
        table.add_column(Text(f"version {version}: {_mean(samples)}"), ratio=1)
    for pair in zip_longest(contrast.before, contrast.after):
        table.add_row(*(_cell(sample) for sample in pair))
    return Group(_prompt(contrast.prompt), table, Text())


def as_values(sample: RecordedSample) -> dict[str, Any]:
    """What JSON can hold: all that is known of it, texts as they are."""
    return asdict(sample) | {"versions": {str(version): tokens for version, tokens in sample.versions.items()}}


def _prompt(sample: RecordedSample) -> RenderableType:
    title = Text.assemble("prompt ", _text(sample.prompt_id))
    return Group(Rule(title, align="left"), Text(visible(prompt_text(sample)), style="italic"), Text())


def _cell(sample: RecordedSample | None) -> RenderableType:
    if sample is None:
        return Text("-")
    facts = Text.assemble(
        f"reward {_decimal(sample.reward)}, step ", _number(sample.step), ", ", _fate(sample), style="dim"
    )
    return Group(facts, Text(visible(sample.completion)))


def _mean(samples: Sequence[RecordedSample]) -> str:
    rewards = [sample.reward for sample in samples if sample.reward is not None]
    count = f"{len(samples)} sample{'' if len(samples) == 1 else 's'}"
    return f"{count}, mean reward {sum(rewards) / len(rewards):+.3f}" if rewards else count


def _versions(sample: RecordedSample) -> str:
    """`3`, or `3-5` of a completion that a publish cut through."""
    ends: Mapping[int, int] = sample.versions
    if not ends:
        return "-"
    first, last = min(ends), max(ends)
    return str(first) if first == last else f"{first}-{last}"


def _fate(sample: RecordedSample) -> Text:
    return Text(visible(sample.fate), style=_STYLES.get(sample.fate.partition(":")[0], ""))


def _text(value: str) -> Text:
    return Text(one_line(value, _PREVIEW))


def _number(value: int | None) -> str:
    return "-" if value is None else str(value)


def _decimal(value: float | None) -> str:
    return "-" if value is None else f"{value:+.3f}"
