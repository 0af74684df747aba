import json
import random
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from learning_cases import make_config
from resume_cases import (
    HALF,
    PRECISIONS,
    SCHEDULES,
    STEPS,
    TRAINED,
    differences,
    everything,
    resume_config,
    train_steps,
)
from safetensors.torch import load_file, save_file

from asyncgrpo.errors import LearnerError
from asyncgrpo.learning.learner import Learner


@pytest.fixture(scope="module")
def saved(tied_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of version 1, after four updates."""
    folder = tmp_path_factory.mktemp("checkpoints") / "one"
    learner = Learner(resume_config(str(tied_model), "full", "constant", "fp32"), "cpu")
    train_steps(learner, 1)
    learner.save(str(folder))
    return folder


def stir() -> None:
    """As another process would: generators that have nothing to do with those of before."""
    torch.manual_seed(999)
    np.random.seed(999)
    random.seed(999)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("trained", TRAINED)
def test_ten_steps_are_five_and_a_resume_and_five(
    tied_model: Path, tmp_path: Path, trained: str, schedule: str, precision: str
) -> None:
    config = resume_config(str(tied_model), trained, schedule, precision)
    whole = Learner(config, "cpu")
    initial = everything(whole)
    metrics = train_steps(whole, HALF)
    at_half = everything(whole)
    size = whole.save(str(tmp_path / "half"))
    assert differences(everything(whole), at_half) == []  # saving is not seen
    metrics += train_steps(whole, STEPS - HALF)
    at_end = everything(whole)
    stir()
    resumed = Learner(config, "cpu")
    said = resumed.load(str(tmp_path / "half"), version=HALF)
    assert (said.version, said.updates, said.remarks) == (HALF, HALF * 4, ())
    assert differences(everything(resumed), at_half) == []
    assert train_steps(resumed, STEPS - HALF) == metrics[HALF:]
    assert differences(everything(resumed), at_end) == []
    assert len(set(differences(at_half, at_end))) > 10 < len(differences(initial, at_half))
    assert size < sum(file.stat().st_size for file in (tmp_path / "half").iterdir()) < size + 1000


def test_a_learner_goes_back_to_its_own_checkpoint(tied_model: Path, tmp_path: Path) -> None:
    """As after a guard's rollback: what came since leaves no trace."""
    learner = Learner(resume_config(str(tied_model), "lora", "cosine", "fp32"), "cpu")
    train_steps(learner, 2)
    learner.save(str(tmp_path))
    first = train_steps(learner, 2), everything(learner)
    learner.load(str(tmp_path))
    assert (train_steps(learner, 2), differences(everything(learner), first[1])) == (first[0], [])


def test_the_start_can_be_gone_back_to_and_has_no_moments(tied_model: Path, tmp_path: Path) -> None:
    learner = Learner(resume_config(str(tied_model), "full", "cosine", "fp32"), "cpu")
    learner.save(str(tmp_path))
    before = everything(learner)
    train_steps(learner, 1)
    assert learner.load(str(tmp_path)).updates == 0
    assert load_file(tmp_path / "optimiser.safetensors") == {}
    assert differences(everything(learner), before) == []


def test_only_adapters_are_saved(tied_model: Path, tmp_path: Path) -> None:
    learner = Learner(resume_config(str(tied_model), "lora", "constant", "fp32"), "cpu")
    learner.save(str(tmp_path))
    names = load_file(tmp_path / "weights.safetensors").keys()
    assert names and all(".lora_" in name for name in names)


def test_the_reference_stays_the_initial_model(tied_model: Path, tmp_path: Path) -> None:
    config = make_config(str(tied_model), objective={"beta": 0.1}, training={"groups_per_step": 4})
    learner = Learner(config, "cpu")
    train_steps(learner, 2)
    learner.save(str(tmp_path))
    expected = train_steps(learner, 1)
    resumed = Learner(config, "cpu")
    resumed.load(str(tmp_path))
    assert train_steps(resumed, 1) == expected
    assert expected[0]["kl/current_reference_k3"] > 1e-7


def test_skipped_updates_go_on_being_counted(tied_model: Path, tmp_path: Path) -> None:
    config = resume_config(str(tied_model), "full", "constant", "fp32")
    learner = Learner(config, "cpu")
    learner._updates.skipped_in_a_row = 2
    learner.save(str(tmp_path))
    resumed = Learner(config, "cpu")
    resumed.load(str(tmp_path))
    assert resumed._updates.skipped_in_a_row == 2


def test_a_changed_learning_rate_takes_effect_and_is_said(tied_model: Path, saved: Path) -> None:
    config = resume_config(str(tied_model), "full", "constant", "fp32", training={"learning_rate": 1e-3})
    resumed = Learner(config, "cpu")
    (remark,) = resumed.load(str(saved)).remarks
    assert "learning rate is 0.001 where the run that saved would have had 0.01" in remark
    assert train_steps(resumed, 1)[0]["learning_rate"] == 1e-3


def test_another_number_of_ranks_takes_over_all_but_the_generators(tied_model: Path, saved: Path) -> None:
    config = resume_config(str(tied_model), "full", "constant", "fp32")
    alike = Learner(config, "cpu")
    alike.load(str(saved))
    expected = everything(alike)
    states = []
    for rank in (0, 1):
        one_of_two = Learner(config, "cpu")  # none of its updates is made, so nobody is waited for
        one_of_two._resumable._world_size, one_of_two._resumable._rank = 2, rank
        stir()
        (remark,) = one_of_two.load(str(saved)).remarks
        assert remark == "random generators are seeded anew: 1 ranks saved, 2 go on"
        states.append(everything(one_of_two))
        assert set(differences(states[-1], expected)) == {"torch", "numpy", "python"}
    assert set(differences(*states)) == {"torch", "numpy", "python"}  # and ranks draw apart from each other


def edit(folder: Path, name: str, **changes: Any) -> None:
    found = json.loads((folder / name).read_text())
    (folder / name).write_text(json.dumps(found | changes))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def without_a_moment(path: Path) -> None:
    tensors = load_file(path)
    del tensors[max(tensors)]
    save_file(tensors, path, {"version": "1", "updates": "4"})


FAULTS = {
    "no folder": (shutil.rmtree, r"learner\.json is not a learner's part of a checkpoint: .*No such file"),
    "no facts": (lambda f: (f / "learner.json").unlink(), r"learner\.json is not a learner's part"),
    "torn facts": (lambda f: cut(f / "learner.json"), r"learner\.json is not a learner's part of a checkpoint: Exp"),
    "format": (
        lambda f: edit(f, "learner.json", format=2),
        "is not of format 1, which this version of asyncgrpo reads",
    ),
    "unknown": (lambda f: edit(f, "learner.json", more=2), "is not of format 1, which this version of asyncgrpo reads"),
    "no weights": (lambda f: (f / "weights.safetensors").unlink(), r"weights\.safetensors is missing or torn"),
    "torn weights": (lambda f: cut(f / "weights.safetensors"), r"weights\.safetensors is missing or torn"),
    "no moments": (lambda f: (f / "optimiser.safetensors").unlink(), r"optimiser\.safetensors is missing or torn"),
    "torn moments": (lambda f: cut(f / "optimiser.safetensors"), r"optimiser\.safetensors is missing or torn"),
    "part of moments": (lambda f: without_a_moment(f / "optimiser.safetensors"), r"optimiser\.safetensors lacks"),
    "no generators": (lambda f: (f / "rank0.safetensors").unlink(), r"rank0\.safetensors is missing or torn"),
    "mixed": (
        lambda f: edit(f, "learner.json", version=2),
        r"weights\.safetensors is of \{'version': '1', .* but learner\.json beside it of \{'version': '2'",
    ),
    "alpha": (lambda f: edit(f, "learner.json", lora_alpha=8), r"saved with lora\.lora_alpha=8 .* now it is None"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_not_whole_is_refused_and_changes_nothing(
    tied_model: Path, saved: Path, tmp_path: Path, fault: str
) -> None:
    damage, message = FAULTS[fault]
    folder = Path(shutil.copytree(saved, tmp_path / "copy"))
    damage(folder)
    learner = Learner(resume_config(str(tied_model), "full", "constant", "fp32"), "cpu")
    before = everything(learner)
    with pytest.raises(LearnerError, match=message):
        learner.load(str(folder))
    assert differences(everything(learner), before) == []


@pytest.mark.parametrize(
    ("model", "sections", "message"),
    [
        ("tied_model", {"lora": {"lora_r": 4}}, r"lora\.lora_alpha=None \(None: without adapters\), now it is 32"),
        ("tied_model", {"model": {"dtype": "bfloat16"}}, r"is F32\[.*\], this learner trains BF16\["),
        ("untied_model", {}, r"weights\.safetensors lacks 'lm_head\.weight', which this learner trains"),
    ],
)
def test_another_model_is_refused_by_name(
    request: pytest.FixtureRequest, saved: Path, model: str, sections: dict[str, Any], message: str
) -> None:
    path = str(request.getfixturevalue(model))
    learner = Learner(make_config(path, **{"model": {}, **sections, "training": {"groups_per_step": 4}}), "cpu")
    with pytest.raises(LearnerError, match=message):
        learner.load(str(saved))


def test_adapters_of_another_rank_are_refused(tied_model: Path, tmp_path: Path) -> None:
    Learner(make_config(str(tied_model), lora={"lora_r": 4}), "cpu").save(str(tmp_path))
    with pytest.raises(LearnerError, match=r"lora_A.*' is F32\[4, \d+\], this learner trains F32\[8, \d+\]"):
        Learner(make_config(str(tied_model), lora={"lora_r": 8}), "cpu").load(str(tmp_path))


def test_adapters_on_another_base_model_are_refused(tied_model: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(tied_model, tmp_path / "other"))
    tensors = load_file(other / "model.safetensors")
    save_file({name: tensor * 1.01 for name, tensor in tensors.items()}, other / "model.safetensors", {"format": "pt"})
    Learner(make_config(str(tied_model), lora={"lora_r": 4}), "cpu").save(str(tmp_path / "saved"))
    with pytest.raises(LearnerError, match=r"trained from other initial weights than those of model\.path=.*other"):
        Learner(make_config(str(other), lora={"lora_r": 4}), "cpu").load(str(tmp_path / "saved"))


def test_a_version_that_was_not_asked_for_is_refused(tied_model: Path, saved: Path) -> None:
    learner = Learner(resume_config(str(tied_model), "full", "constant", "fp32"), "cpu")
    with pytest.raises(LearnerError, match=re.escape(f"{saved} holds version 1 of the learner, not 3")):
        learner.load(str(saved), version=3)


def test_a_disk_that_refuses_leaves_the_former_files_and_the_learner(
    tied_model: Path, saved: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(saved, tmp_path / "copy"))
    blocked = folder / "optimiser.safetensors"
    blocked.unlink()
    blocked.mkdir()  # cannot be replaced by a file
    before = (folder / "learner.json").read_bytes()
    learner = Learner(resume_config(str(tied_model), "full", "constant", "fp32"), "cpu")
    train_steps(learner, 2)
    with pytest.raises(
        LearnerError, match=r"the learner's part of a checkpoint: cannot write .*optimiser\.safetensors"
    ):
        learner.save(str(folder))
    assert (folder / "learner.json").read_bytes() == before
    assert [file.name for file in folder.iterdir() if "tmp" in file.name] == []
    with pytest.raises(
        LearnerError, match=r"is of \{'version': '2'"
    ):  # weights are new, facts are not: never a mixture
        learner.load(str(folder))
    learner.save(str(tmp_path / "elsewhere"))
