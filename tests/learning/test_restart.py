"""Checkpoints over the process boundary, and ranks that die."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest
from learning_cases import make_config, random_groups
from resume_cases import TRAINED, resume_config
from safetensors.torch import load_file

from asyncgrpo.config import RunConfig
from asyncgrpo.errors import LearnerError
from asyncgrpo.learning.batching import make_batch
from asyncgrpo.learning.client import LearnerClient
from asyncgrpo.types import Batch, StepReport

DEADLINE = 240
HERE = Path(__file__).parent


def with_processes(config: RunConfig, ranks: int = 1) -> RunConfig:
    learner = config.learner.model_copy(update={"mode": "process", "devices": ("cpu",) * ranks, "token_budget": 24})
    return config.model_copy(update={"learner": learner})


def batch_for(config: RunConfig, version: int) -> Batch:
    return make_batch(random_groups(version, groups=config.training.groups_per_step), version, config)


async def train(client: LearnerClient, config: RunConfig, versions: range) -> list[StepReport]:
    return [await client.train(batch_for(config, version)) for version in versions]


def assert_same_folder(one: Path, other: Path) -> None:
    """Two checkpoints of the same moment."""
    assert sorted(f.name for f in one.iterdir()) == sorted(f.name for f in other.iterdir())
    for file in one.iterdir():
        assert file.read_bytes() == (other / file.name).read_bytes(), file.name


@pytest.mark.slow
async def test_a_rank_killed_in_a_step_is_restarted_from_the_checkpoint_and_loses_nothing(
    tied_model: Path, tmp_path: Path
) -> None:
    """Two ranks, of which one waits for the dead one in a collective. The control never stops."""
    config = with_processes(resume_config(str(tied_model), "lora", "cosine", "fp32"), 2)
    control, client = LearnerClient(config, tmp_path / "control"), LearnerClient(config, tmp_path)
    async with asyncio.timeout(DEADLINE):
        await asyncio.gather(control.start(), client.start())
        expected = await train(control, config, range(3))
        await control.save(tmp_path / "expected")
        await control.stop()

        await train(client, config, range(1))
        size = await client.save(tmp_path / "one")
        assert size > 10_000
        before = client.pids
        death = asyncio.create_task(death_of(client))
        os.kill(before[1], signal.SIGSTOP)
        call = asyncio.create_task(client.train(batch_for(config, 1)))
        await asyncio.sleep(0.3)
        os.kill(before[1], signal.SIGKILL)
        with pytest.raises(LearnerError, match=r"rank 1 .* ended with signal SIGKILL"):
            await call
        assert "SIGKILL" in str(await death)
        death = asyncio.create_task(death_of(client))  # of those that come; the restart itself is none
        resumed = await client.restart(tmp_path / "one", version=1)
        assert (resumed.version, resumed.updates, resumed.remarks) == (1, 4, ())
        assert set(client.pids).isdisjoint(before)
        again = await train(client, config, range(1, 3))
        await client.save(tmp_path / "again")
        os.kill(client.pids[0], signal.SIGKILL)
        assert "rank 0 " in str(await death)
        await client.stop()
    assert [report.metrics for report in again] == [report.metrics for report in expected[1:]]
    assert_same_folder(tmp_path / "expected", tmp_path / "again")


async def test_calls_of_a_checkpoint_over_the_process_boundary(tied_model: Path, tmp_path: Path) -> None:
    config = with_processes(make_config(str(tied_model)))
    client = LearnerClient(config, tmp_path)
    async with asyncio.timeout(DEADLINE):
        with pytest.raises(LearnerError, match="has not been started"):
            await client.save(tmp_path / "zero")
        await client.start()
        await client.save(tmp_path / "zero")
        (report,) = await train(client, config, range(1))
        (tmp_path / "file").touch()
        with pytest.raises(LearnerError, match=r"rank 0, save: the learner's part of a checkpoint: .*file"):
            await client.save(tmp_path / "file")
        with pytest.raises(LearnerError, match=r"rank 0, load: .*zero holds version 0 of the learner, not 5"):
            await client.load(tmp_path / "zero", version=5)
        assert (await client.load(tmp_path / "zero")).version == 0
        assert (await train(client, config, range(1)))[0].metrics == report.metrics
        with pytest.raises(LearnerError, match=r"nowhere.*is not a learner's part of a checkpoint"):
            await client.restart(tmp_path / "nowhere")
        with pytest.raises(LearnerError, match=r"rank 0 .* ended"):
            await client.save(tmp_path / "one")
        assert (await client.restart(tmp_path / "zero")).version == 0
        assert (await train(client, config, range(1)))[0].metrics == report.metrics
        await client.stop()


async def test_a_restart_ends_a_call_under_way(tied_model: Path, tmp_path: Path) -> None:
    config = with_processes(make_config(str(tied_model)))
    client = LearnerClient(config, tmp_path)
    async with asyncio.timeout(DEADLINE):
        await client.start()
        await client.save(tmp_path / "zero")
        os.kill(client.pids[0], signal.SIGSTOP)  # hung, not dead: nothing but its deadline would end the call
        call = asyncio.create_task(client.train(batch_for(config, 0)))
        await asyncio.sleep(0.05)
        await client.restart(tmp_path / "zero")
        with pytest.raises(LearnerError, match="ended with signal SIGKILL"):
            await call
        assert [len(score) for score in await client.score([((1,), (2, 3))])] == [2]
        await client.stop()


async def test_an_inline_learner_has_checkpoints_too(tied_model: Path, tmp_path: Path) -> None:
    config = resume_config(str(tied_model), "lora", "cosine", "fp32")
    client = LearnerClient(config, tmp_path)
    async with asyncio.timeout(DEADLINE):
        await client.start()
        await train(client, config, range(1))
        await client.save(tmp_path / "one")
        (expected,) = await train(client, config, range(1, 2))
        await client.load(tmp_path / "one")
        (loaded,) = await train(client, config, range(1, 2))
        await client.restart(tmp_path / "one")
        (restarted,) = await train(client, config, range(1, 2))
        await client.save(tmp_path / "two")
        await client.stop()
    assert loaded.metrics == restarted.metrics == expected.metrics
    assert len(load_file(tmp_path / "two" / "weights.safetensors")) > 0


RANK = """
import sys
import torch.distributed as dist
from resume_cases import *
from asyncgrpo.learning.rank import build_learner
from asyncgrpo.learning.learner import Learner
from asyncgrpo.config import RunConfig
model, folder, rank = sys.argv[1], sys.argv[2], int(sys.argv[3])
combinations = [(t, s, p) for t in TRAINED for s in SCHEDULES for p in ("fp32", "autocast")]
first = True
for trained, schedule, precision in combinations:
    case = f"{folder}/{trained}-{schedule}-{precision}"
    config = resume_config(model, trained, schedule, precision)
    config = config.model_copy(
        update={"learner": config.learner.model_copy(update={"mode": "process", "devices": ("cpu", "cpu")})}
    )
    whole = build_learner(config, rank, 2, f"{folder}/rendezvous") if first else Learner(config, "cpu", rank, 2)
    first = False
    metrics = train_steps(whole, HALF)
    whole.save(case)
    metrics += train_steps(whole, STEPS - HALF)
    at_end = everything(whole)
    random.seed(rank), np.random.seed(rank), torch.manual_seed(rank)
    resumed = Learner(config, "cpu", rank, 2)
    dist.barrier()
    resumed.load(case)
    assert train_steps(resumed, STEPS - HALF) == metrics[HALF:], case
    assert differences(everything(resumed), at_end) == [], case
    print(case.rpartition("/")[2], flush=True)
"""


@pytest.mark.slow
async def test_two_ranks_resume_to_the_last_bit(tied_model: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": f"{HERE}:{os.environ.get('PYTHONPATH', '')}", "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, "-W", "ignore", "-c", RANK, str(tied_model), str(tmp_path)]
    async with asyncio.timeout(2 * DEADLINE):
        ranks = [
            await asyncio.create_subprocess_exec(
                *command, str(rank), env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
            )
            for rank in (0, 1)
        ]
        try:
            said = await asyncio.gather(*(rank.communicate() for rank in ranks))
        finally:
            for rank in ranks:
                if rank.returncode is None:
                    rank.kill()
                    await rank.wait()
    assert [rank.returncode for rank in ranks] == [0, 0], said
    assert [len(out.splitlines()) for out, _ in said] == [len(TRAINED) * 2 * 2] * 2


async def test_a_late_answer_makes_a_rank_whole_again(tied_model: Path, tmp_path: Path) -> None:
    """A checkpoint that takes longer than it may costs that checkpoint, not the learner."""
    config = with_processes(make_config(str(tied_model), checkpoint={"save_timeout": 0.5}))
    client = LearnerClient(config, tmp_path)
    async with asyncio.timeout(DEADLINE):
        await client.start()
        os.kill(client.pids[0], signal.SIGSTOP)
        with pytest.raises(LearnerError, match=r"did not finish 'save' within 0.5 s; .*checkpoint.save_timeout"):
            await client.save(tmp_path / "late")
        assert client.is_lost
        os.kill(client.pids[0], signal.SIGCONT)
        await train(client, config, range(1))
        assert not client.is_lost
        await client.stop()


async def death_of(client: LearnerClient) -> str:
    with pytest.raises(LearnerError) as death:
        await client.watch()
    return str(death.value)
