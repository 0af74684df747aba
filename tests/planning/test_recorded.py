"""From a run's folder to a model of it: written by the recorder, read by the planner."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from asyncgrpo.config import RunConfig
from asyncgrpo.config.loading import from_python
from asyncgrpo.config.render import render_config
from asyncgrpo.errors import RunFolderError
from asyncgrpo.observe.recorder import Recorder
from asyncgrpo.observe.run_folder import RunFolder
from asyncgrpo.planning.fitting import fit
from asyncgrpo.planning.prediction import prediction_from_former_run, prediction_from_run
from asyncgrpo.planning.recorded import read_recording
from asyncgrpo.types import Completion, Group, Prompt, Sample

STEPS, GROUPS, SAMPLES = 6, 2, 2
CONFIG = RunConfig.model_validate(
    {
        "generation": {"num_generations": SAMPLES},
        "engines": {"urls": ["http://127.0.0.1:1"], "max_num_seqs": 4},
        "buffer": {"max_staleness": 0},
        "training": {"groups_per_step": GROUPS, "max_steps": 20},
        "learner": {"devices": ["cpu"]},
    }
)


def completion(tokens: int, started: float, versions: tuple[int, ...]) -> Completion:
    return Completion(
        token_ids=tuple(range(tokens)),
        behaviour_logprobs=(-1.0,) * tokens,
        versions=versions,
        finish_reason="stop",
        engine="engine-0",
        started_at=started,
        finished_at=started + 0.5 + 0.01 * tokens,
    )


def written(path: Path, *, rollouts: bool = True) -> Path:
    """Synchronous steps: two groups of 50 and 100 tokens, scored after 0.1 s; 2 s of training, 0.3 of snapshot."""
    with RunFolder.create(path) as folder:
        folder.config_file.write_text(render_config(from_python(CONFIG, ())))
        recorder = Recorder(folder)
        clock = 100.0
        for step in range(1, STEPS + 1):
            groups = [group(step, number, tokens, clock) for number, tokens in enumerate((50, 100))]
            entered = max(group.entered_at for group in groups)
            end = entered + 0.2 + 2.0 + 0.3
            if rollouts:
                recorder.write_rollouts(step, step - 1, groups, np.zeros(GROUPS * SAMPLES))
            recorder.append_step(
                {
                    "step": step,
                    "time": end + offset(folder, step) if rollouts else end,
                    "tokens_trained": 300,
                    "training_seconds": 2.0,
                    "snapshot_seconds": 0.3,
                    "waiting_seconds": end - clock - 2.3,
                    "step_seconds": end - clock,
                    "publish_seconds": 0.0,
                    "uniform_groups_ratio": 0.0,
                    "groups_admitted": step * GROUPS,
                    "groups_dropped/failed": 0,
                }
            )
            clock = end
    return path


def offset(folder: RunFolder, step: int) -> float:
    """Of the clock in the rollouts' metadata, which the recorder takes as it writes."""
    import pyarrow.parquet as pq

    metadata = pq.read_schema(folder.rollouts_dir / f"step_{step:06d}.parquet").metadata
    return float(metadata[b"monotonic_to_unix_seconds"])


def group(step: int, number: int, tokens: int, started: float) -> Group:
    samples = tuple(
        Sample(completion=completion(tokens, started, (step - 1,) * tokens), text="", rewards={"f": 1.0}, reward=1.0)
        for _ in range(SAMPLES)
    )
    ended = max(sample.completion.finished_at for sample in samples)
    return Group(
        group_id=step * GROUPS + number,
        prompt=Prompt(prompt_id=f"0-{step}-{number}", epoch=0, row=0, prompt="p", token_ids=(1,)),
        samples=samples,
        start_version=step - 1,
        admitted_at=started,
        entered_at=ended + 0.1,
    )


def test_a_recording_becomes_the_model_that_made_it(tmp_path: Path) -> None:
    model = fit(read_recording(written(tmp_path / "run")))
    assert (model.engines.count, model.engines.max_num_seqs) == (1, 4)
    assert model.lengths.samples == SAMPLES
    assert model.lengths.mean == 75
    assert model.policy.max_staleness == 0
    assert model.policy.groups_per_step == GROUPS
    assert model.reward_seconds == pytest.approx(0.1, abs=1e-3)
    assert model.learner.training_seconds(300) == pytest.approx(2.0)
    assert model.learner.snapshot_seconds == pytest.approx(0.3)
    assert model.learner.overhead_seconds == pytest.approx(0.2, abs=0.01)
    # A long sample runs beside 4 requests, then beside 2: the parts of its time cannot be told apart, their sum can.
    assert model.engines.request_seconds + 100 * model.engines.step_seconds(3.3) == pytest.approx(1.5, rel=0.02)


def test_the_rest_of_a_run_is_predicted_from_its_first_steps(tmp_path: Path) -> None:
    prediction = prediction_from_run(written(tmp_path / "run"), total_steps=20, first_steps=4)
    assert prediction.after_step == 4
    assert prediction.staleness == pytest.approx(0.0)
    # Half of the drawn steps have a long group only by chance: 3 of 4 steps take 4.1 s, the fourth 3.6 s.
    assert 3.6 < prediction.step_seconds < 4.3


def test_another_run_is_predicted_with_its_own_settings(tmp_path: Path) -> None:
    config = CONFIG.model_copy(update={"buffer": CONFIG.buffer.model_copy(update={"max_staleness": 4})})
    prediction = prediction_from_former_run(written(tmp_path / "run"), config, total_steps=40)
    assert prediction.step_seconds == pytest.approx(2.5, rel=0.05)
    assert prediction.staleness > 2


def test_a_folder_that_tells_too_little_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="is this the folder of a run"):
        read_recording(tmp_path)
    with pytest.raises(RunFolderError, match="save_rollouts=true"):
        read_recording(written(tmp_path / "run", rollouts=False))


def test_what_an_environment_gave_cost_no_engine_a_token(tmp_path: Path) -> None:
    """Of 5 tokens, 2 are the environment's; a version that changes at the given ones is a publish all the same."""
    said = replace(
        completion(5, 1.0, (0, 0, 0, 1, 1)),
        sampled=np.array([True, False, False, True, True]),
        behaviour_logprobs=np.array([-1.0, 0.0, 0.0, -1.0, -1.0]),
    )
    plain = completion(4, 1.0, (0, 0, 0, 0))
    with RunFolder.create(tmp_path / "run") as folder:
        folder.config_file.write_text(render_config(from_python(CONFIG, ())))
        samples = [Sample(completion=each, text="", rewards={"f": 1.0}, reward=1.0) for each in (said, plain)]
        turns = replace(group(1, 0, 1, 1.0), samples=tuple(samples))
        recorder = Recorder(folder)
        recorder.write_rollouts(1, 0, [turns], np.zeros(2))
        recorder.append_step({"step": 1, "time": 5.0})
        read = read_recording(folder.path).samples
        assert (read.tokens.tolist(), read.publishes.tolist()) == ([3, 4], [1, 0])
        file = folder.rollouts_dir / "step_000001.parquet"
        pq.write_table(pq.read_table(file).drop_columns(["sampled"]), file)  # of before there were turns
        assert read_recording(folder.path).samples.tokens.tolist() == [5, 4]
