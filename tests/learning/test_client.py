import asyncio
import dataclasses
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from learning_cases import GRADIENT_STEPS, make_config, random_groups
from safetensors import safe_open
from safetensors.torch import load_file

from asyncgrpo.config import RunConfig
from asyncgrpo.errors import ConfigError, LearnerError
from asyncgrpo.learning.batching import make_batch
from asyncgrpo.learning.client import LearnerClient
from asyncgrpo.types import Batch, Replayed, StepReport

DEADLINE = 120


def process_config(path: Path, ranks: int = 1, **sections: dict) -> RunConfig:
    learner = {"mode": "process", "devices": ("cpu",) * ranks, "token_budget": 24, **sections.pop("learner", {})}
    return make_config(str(path), learner=learner, **sections)


async def train_once(config: RunConfig, batch: Batch, folder: Path) -> tuple[StepReport, dict[str, torch.Tensor]]:
    """The report of a step, and the weights after it."""
    client = LearnerClient(config, folder)
    try:
        await client.start()
        report = await client.train(batch)
        return report, load_file((await client.write_snapshot(str(folder / "v1"), 1)).path)
    finally:
        await client.stop()


@pytest.mark.slow
async def test_one_and_two_ranks_and_inline_train_the_same_weights(tied_model: Path, tmp_path: Path) -> None:
    training = {"groups_per_step": 4, "num_minibatches": 2, "num_iterations": 2, **GRADIENT_STEPS}
    batch = make_batch(random_groups(groups=4), 0, make_config(str(tied_model), training=training))
    async with asyncio.timeout(DEADLINE):
        one = await train_once(process_config(tied_model, 1, training=training), batch, tmp_path)
        two = await train_once(process_config(tied_model, 2, training=training), batch, tmp_path)
        inline = await train_once(make_config(str(tied_model), training=training), batch, tmp_path)
    initial = load_file(tied_model / "model.safetensors")
    moved = {name: float((tensor - initial[name]).abs().max()) for name, tensor in one[1].items()}
    assert max(moved.values()) > 1e-3  # a thousand times the tolerance
    assert one[0].version == 1
    assert one[0].metrics["optimiser/updates"] == 4
    for report, tensors in (two, inline):
        for name, tensor in tensors.items():
            torch.testing.assert_close(tensor, one[1][name], rtol=0, atol=1e-6)
        assert report.metrics.keys() == one[0].metrics.keys()
        for name, value in one[0].metrics.items():
            assert report.metrics[name] == pytest.approx(value, rel=1e-4, abs=1e-6), name
        np.testing.assert_allclose(report.proximal_logprobs, one[0].proximal_logprobs, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "sections",
    [
        # statistics over both ranks
        {"objective": {"gate": "m2po", "proximal_anchor": "behaviour", "importance_sampling_correction": "none"}},
        {"objective": {"importance_sampling_normalise": True, "top_entropy_quantile": 0.5, "loss_type": "prompt_mean"}},
        # everything that keeps something between passes
        {
            "lora": {"lora_r": 4},
            "objective": {"beta": 0.1, "entropy_coef": 0.01},
            "training": {"gradient_checkpointing": True, "num_iterations": 2},
        },
    ],
    ids=["m2po", "entropy_and_normalise", "lora_checkpointing_beta"],
)
async def test_two_ranks_train_as_one(tied_model: Path, tmp_path: Path, sections: dict) -> None:
    """One group and a short second minibatch: a rank without a sample of it computes a stand-in."""
    sections = {"objective": {}, "lora": {}} | sections
    sections["training"] = {"groups_per_step": 2, "num_minibatches": 2, **GRADIENT_STEPS} | sections.get("training", {})
    config = make_config(str(tied_model), **sections)
    first, second = random_groups(seed=3, groups=2)
    batch = make_batch([first, dataclasses.replace(second, samples=second.samples[:1])], 0, config)
    batch = dataclasses.replace(batch, advantages=np.linspace(-1, 1, len(batch), dtype=np.float32))
    async with asyncio.timeout(DEADLINE):
        inline = await train_once(config, batch, tmp_path)
        two = await train_once(process_config(tied_model, 2, **sections), batch, tmp_path)
    for name, value in inline[0].metrics.items():
        assert two[0].metrics[name] == pytest.approx(value, rel=1e-4, abs=1e-6), name
    assert inline[0].metrics["grad_norm"] > 1e-4
    for name, tensor in two[1].items():
        torch.testing.assert_close(tensor, inline[1][name], rtol=0, atol=1e-6)


@pytest.mark.slow
async def test_ranks_agree_on_the_baseline_of_a_replayed_group_that_is_cut_over_them(
    tied_model: Path, tmp_path: Path
) -> None:
    """One rank has samples without an advantage of their own: only the baseline, of all samples, gives them one."""
    replay = {"replay_fraction": 0.5, "replay_advantages": "importance_baseline"}
    config = make_config(str(tied_model), replay=replay, training=GRADIENT_STEPS)
    (group,) = random_groups(seed=3, groups=1)
    advantages = np.array([0.0, 0.0, 2.0, -2.0], dtype=np.float32)
    replayed = Replayed(group=group, advantages=advantages, uses=1, probability_weight=0.5)
    batch = make_batch([], 0, config, replayed=[replayed])
    async with asyncio.timeout(DEADLINE):
        inline = await train_once(config, batch, tmp_path)
        ranks = process_config(tied_model, 2, replay=replay, training=GRADIENT_STEPS)
        two = await train_once(ranks, batch, tmp_path)
        frozen = await train_once(make_config(str(tied_model), training=GRADIENT_STEPS), batch, tmp_path)
    assert two[0].metrics["grad_norm"] == pytest.approx(inline[0].metrics["grad_norm"], rel=1e-5)
    assert abs(frozen[0].metrics["grad_norm"] / inline[0].metrics["grad_norm"] - 1) > 0.01
    for name, tensor in two[1].items():
        torch.testing.assert_close(tensor, inline[1][name], rtol=0, atol=1e-6)


async def test_calls_over_the_process_boundary(tied_model: Path, tmp_path: Path) -> None:
    """One process serves them all: it takes seconds to start."""
    config = process_config(tied_model, learner={"step_timeout": 20.0})
    client = LearnerClient(config, tmp_path)
    async with asyncio.timeout(DEADLINE):
        await client.start()
        await snapshot_score_and_save(client, tmp_path)
        await refusals_leave_it_usable(client, make_batch(random_groups(), 7, config))
        await answers_nobody_waits_for_are_dropped(client)
        await client.stop()
        await client.stop()
    assert "rank 0 of 1 on cpu" in (tmp_path / "learner-rank0.log").read_text()
    assert len(client.pids) == 1
    assert not is_alive(client.pids[0])


async def snapshot_score_and_save(client: LearnerClient, folder: Path) -> None:
    snapshot = await client.write_snapshot(str(folder / "v0.safetensors"), 0)
    assert snapshot.version == 0
    assert snapshot.bytes == (folder / "v0.safetensors").stat().st_size
    with safe_open(snapshot.path, "np") as file:
        assert "model.embed_tokens.weight" in set(file.keys())
    scores = await client.score([((5, 6), (7, 8, 9)), ((5,), ())])
    assert [len(score) for score in scores] == [3, 0]
    await client.save_model(str(folder / "saved"))
    assert (folder / "saved" / "config.json").is_file()


async def refusals_leave_it_usable(client: LearnerClient, batch_of_version_7: Batch) -> None:
    with pytest.raises(LearnerError, match="rank 0, write_snapshot: a snapshot of version 3 was asked of a learner at"):
        await client.write_snapshot("/nowhere/v3", 3)
    with pytest.raises(LearnerError, match="rank 0, train: a batch for version 7 reached a learner at version 0"):
        await client.train(batch_of_version_7)
    with pytest.raises(LearnerError, match="rank 0, score: token id 100000 is outside the model's vocabulary of"):
        await client.score([((5, 6), (100_000,))])
    with pytest.raises(LearnerError, match=r"TypeError: .*; the traceback is in .*learner-rank0\.log"):
        await client.write_snapshot("/nowhere/v0", 0, perturbation="not a seed")  # type: ignore[arg-type]
    assert await client.score([]) == []


async def answers_nobody_waits_for_are_dropped(client: LearnerClient) -> None:
    os.kill(client.pids[0], signal.SIGSTOP)
    call = asyncio.create_task(client.score([((1,), (2,))]))
    await asyncio.sleep(0.05)
    call.cancel()
    os.kill(client.pids[0], signal.SIGCONT)
    assert [len(score) for score in await client.score([((1,), (2, 3, 4)), ((1,), (2,))])] == [3, 1]


async def test_a_call_ends_at_its_deadline(tied_model: Path, tmp_path: Path) -> None:
    client = LearnerClient(process_config(tied_model, learner={"start_timeout": 0.5}), tmp_path)
    async with asyncio.timeout(DEADLINE):
        with pytest.raises(LearnerError, match=r"did not finish 'start' within 0\.5 s; raise .*learner\.start_timeout"):
            await client.start()
    assert not is_alive(client.pids[0])


async def test_a_killed_rank_is_reported_at_once_with_its_last_log_lines(tied_model: Path, tmp_path: Path) -> None:
    config = process_config(tied_model)
    client = LearnerClient(config, tmp_path)
    batch = make_batch(random_groups(), 0, config)
    async with asyncio.timeout(DEADLINE):
        await client.start()
        os.kill(client.pids[0], signal.SIGSTOP)  # so that the call is certainly under way
        call = asyncio.create_task(client.train(batch))
        await asyncio.sleep(0.05)
        os.kill(client.pids[0], signal.SIGKILL)
        killed = time.monotonic()
        with pytest.raises(LearnerError, match=r"ended with signal SIGKILL; last lines of .*\n.*rank 0 of 1"):
            await call
        assert time.monotonic() - killed < 20
        with pytest.raises(LearnerError, match="SIGKILL"):
            await client.score([])
        await client.stop()


@pytest.mark.slow
async def test_one_killed_rank_of_two_is_named(tied_model: Path, tmp_path: Path) -> None:
    config = process_config(tied_model, 2)
    client = LearnerClient(config, tmp_path)
    async with asyncio.timeout(DEADLINE):
        await client.start()
        os.kill(client.pids[1], signal.SIGSTOP)
        call = asyncio.create_task(client.train(make_batch(random_groups(), 0, config)))
        await asyncio.sleep(0.3)
        os.kill(client.pids[1], signal.SIGKILL)
        killed = time.monotonic()
        with pytest.raises(LearnerError, match=r"rank 1 .* ended with signal SIGKILL"):
            await call
        assert time.monotonic() - killed < 20
        await client.stop()
        assert not any(is_alive(pid) for pid in client.pids)


@pytest.mark.parametrize("mode", ["process", "inline"])
async def test_a_model_that_does_not_exist_is_a_configuration_error(mode: str, tmp_path: Path) -> None:
    config = make_config("/nowhere/model", learner={"mode": mode})
    client = LearnerClient(config, tmp_path)
    async with asyncio.timeout(DEADLINE):
        with pytest.raises(ConfigError, match=r"model.path='/nowhere/model' does not exist"):
            await client.start()
        await client.stop()
    assert not any(is_alive(pid) for pid in client.pids)


async def test_a_rank_dies_with_its_orchestrator(tied_model: Path, tmp_path: Path) -> None:
    config_file, temporary = tmp_path / "config.json", tmp_path / "temporary"
    temporary.mkdir()
    config_file.write_text(process_config(tied_model).model_dump_json())
    script = (
        "import asyncio, sys\n"
        "from pathlib import Path\n"
        "from asyncgrpo.config import RunConfig\n"
        "from asyncgrpo.learning.client import LearnerClient\n"
        "async def main():\n"
        "    config = RunConfig.model_validate_json(Path(sys.argv[1]).read_text())\n"
        "    client = LearnerClient(config, sys.argv[2])\n"
        "    await client.start()\n"
        "    print(client.pids[0], flush=True)\n"
        "    await asyncio.sleep(3600)\n"
        "asyncio.run(main())\n"
    )
    async with asyncio.timeout(DEADLINE):
        parent = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", script, str(config_file), str(tmp_path)),
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "TMPDIR": str(temporary)},
        )
        assert parent.stdout is not None
        rank = int(await parent.stdout.readline())
        os.kill(rank, signal.SIGSTOP)  # as deaf to its socket as if it computed
        parent.kill()
        await parent.wait()
        await asyncio.to_thread(wait_for_the_end, rank)
    assert list(temporary.iterdir()) == []


def wait_for_the_end(pid: int) -> None:
    while is_alive(pid):
        time.sleep(0.05)


def is_alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # gone, or collected between the opening and the reading
        return False
