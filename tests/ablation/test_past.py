import json
from pathlib import Path

import numpy as np
import pytest
import torch

from asyncgrpo.ablation.kinds.past import Delays, Past, recorded_shares
from asyncgrpo.ablation.kinds.settings import Histogram, InjectedSection
from asyncgrpo.errors import ConfigError


def written(path: Path, *records: dict[str, float]) -> Histogram:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return Histogram(histogram=str(path))


def test_versions_are_so_many_behind_and_never_before_the_first() -> None:
    delays = Delays(InjectedSection(staleness=4), 0)
    assert delays.most == 4
    assert [delays.of_groups(2, version) for version in (0, 3, 4, 9)] == [[0, 0], [0, 0], [0, 0], [5, 5]]


def test_shares_are_of_tokens_over_all_steps(tmp_path: Path) -> None:
    histogram = written(
        tmp_path / "m.jsonl", {"staleness_tokens/0": 5, "staleness_mean": 9}, {"staleness_tokens/3": 15}
    )
    assert recorded_shares(histogram) == {0: 0.25, 3: 0.75}


def test_a_run_folder_is_as_good_as_its_file(tmp_path: Path) -> None:
    written(tmp_path / "metrics.jsonl", {"staleness_tokens/1": 5})
    assert recorded_shares(Histogram(histogram=str(tmp_path))) == {1: 1.0}


def test_draws_follow_the_shares_and_the_seed_and_version_alone(tmp_path: Path) -> None:
    section = InjectedSection(
        staleness=written(tmp_path / "m.jsonl", {"staleness_tokens/0": 1, "staleness_tokens/6": 3})
    )
    drawn = np.array([Delays(section, 0).of_groups(8, version) for version in range(10, 260)])
    late = np.arange(10, 260)[:, None] - drawn
    assert set(late.ravel().tolist()) == {0, 6}
    assert (late == 6).mean() == pytest.approx(0.75, abs=0.03)
    assert Delays(section, 0).of_groups(8, 12) == drawn[2].tolist()
    assert [Delays(section, 1).of_groups(8, version) for version in range(10, 30)] != drawn[:20].tolist()


def test_a_file_without_staleness_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"injected\.staleness\.histogram"):
        recorded_shares(written(tmp_path / "m.jsonl", {"loss": 1.0}))


def test_the_past_keeps_copies_of_as_many_versions_as_are_needed() -> None:
    past, weight = Past(2), torch.zeros(1)
    for version in range(5):
        weight.fill_(version)
        past.keep(version, {"w": weight})
    assert [float(past.of(version)["w"]) for version in (2, 3, 4)] == [2.0, 3.0, 4.0]
    with pytest.raises(KeyError):
        past.of(1)
