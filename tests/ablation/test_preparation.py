"""What all arms of a seed begin from is made once."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ablation_cases import TOY

from asyncgrpo.ablation.preparation import prepared
from asyncgrpo.ablation.study import Prepare


def test_whoever_comes_second_waits_for_the_first(tmp_path: Path) -> None:
    prepare = Prepare(path=f"{TOY}:prepare", options={"digits": 3, "seconds": 0.5})
    prepared(tmp_path, prepare, 0)  # the file is imported: threads that do it at once would do it twice
    with ThreadPoolExecutor(2) as threads:
        made = list(threads.map(lambda seed: prepared(tmp_path, prepare, seed), (1, 1)))
    assert made[0] == made[1]
    assert Path(made[0]["options.start"]).read_text() == "3 1"
    assert (tmp_path / "calls").read_text().split() == ["0", "1"]


def test_one_that_was_cut_off_is_made_anew(tmp_path: Path) -> None:
    prepare = Prepare(path=f"{TOY}:prepare", options={"digits": 3})
    folder = Path(prepared(tmp_path, prepare, 0)["options.start"]).parent
    (folder / "settings.json").unlink()
    (folder / "half").touch()
    prepared(tmp_path, prepare, 0)
    assert sorted(path.name for path in folder.iterdir()) == ["settings.json", "start.txt"]


def test_other_options_and_seeds_are_other_preparations(tmp_path: Path) -> None:
    starts = {
        prepared(tmp_path, Prepare(path=f"{TOY}:prepare", options={"digits": digits}), seed)["options.start"]
        for digits in (3, 4)
        for seed in (0, 1)
    }
    assert len(starts) == 4
