"""What a whole run shows of itself, while it goes on and afterwards."""

import asyncio
import json
import socket
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from run_cases import Run, engine_beside, lengths, make_job, opened, rows, run_config

from asyncgrpo.cli.main import main
from asyncgrpo.config.loading import from_python
from asyncgrpo.config.render import render_config
from asyncgrpo.launch import run_job
from asyncgrpo.observe.page.reader import RunReader
from asyncgrpo.observe.run_folder import RunFolder
from asyncgrpo.testing.fake_engine import FakeEngine


async def asked(port: int, what: str) -> dict[str, Any]:
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/api/{what}") as response:
        answer: dict[str, Any] = await response.json()
    assert response.status == 200, answer
    return answer


async def test_it_shows_itself_while_it_goes_on(tiny_model: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    async with asyncio.timeout(60), FakeEngine(tiny_model, script=lengths, token_seconds=0.01) as engine:
        config = run_config(
            tiny_model, tmp_path, [engine.url], training={"max_steps": 3}, observe={"metrics_port": port}
        )
        async with opened(make_job(config)) as orchestrator:
            running = asyncio.create_task(orchestrator.run())
            while orchestrator.steps_done < 1:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            series = await asked(port, "series")
            assert series["step"][0] == 1
            group = (await asked(port, "rollouts?of=step_000001"))["groups"][0]
            tokens = await asked(port, f"tokens?of=step_000001&group={group['group']}&sample=0")
            assert len(tokens["texts"]) == len(tokens["ids"])  # the run has its tokenizer in hand
            await running
    assert tokens["version"] == 0
    assert tokens["proximal"] == pytest.approx(tokens["logprobs"], abs=1e-3)  # the engine had the learner's weights
    run = Run(tmp_path)
    (row,) = (row for row in run.of_step(1) if (row["group_id"], row["sample"]) == (group["group"], 0))
    assert tokens["ids"] == row["token_ids"]


def test_a_run_as_it_is_started_has_a_timeline_and_a_report(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with engine_beside(tiny_model) as engine:
        job = make_job(run_config(tiny_model, tmp_path, [engine.url], training={"max_steps": 2}))
        run_job(job, config_text=render_config(from_python(job.config, ())))
    answer = RunReader(RunFolder(tmp_path / "run")).answer("timeline", {})
    assert [lane["name"] for lane in answer["lanes"]] == ["learner", "generation", "engine-0"]
    assert len(answer["flow"]["at"]) > 0
    assert main(["report", str(tmp_path / "run")]) == 0
    assert "page at http://127.0.0.1:" in capsys.readouterr().out
    assert '"state":"finished"' in (tmp_path / "run" / "report.html").read_text()


async def test_the_timeline_has_every_step_and_every_publish(tiny_model: Path, tmp_path: Path) -> None:
    async with asyncio.timeout(60), FakeEngine(tiny_model, script=lengths) as engine:
        config = run_config(tiny_model, tmp_path, [engine.url], training={"max_steps": 3}, weights={"probe": False})
        async with opened(make_job(config, data=rows(short=8, long=0))) as orchestrator:
            await orchestrator.run()
    lines = [json.loads(line) for line in (tmp_path / "run" / "spans.jsonl").read_text().splitlines()]
    spans = [line for line in lines if "lane" in line]
    training = [line["step"] for line in spans if (line["lane"], line["state"]) == ("learner", "training")]
    assert training == [1, 2, 3]
    published = [line["step"] for line in spans if (line["lane"], line["state"]) == ("engine-0", "publishing")]
    assert published == [1, 2]  # nothing is published after the last step
    assert {line["state"] for line in spans if line["lane"] == "engine-0"} >= {"busy", "idle"}
    assert all(line["from"] <= line["to"] for line in spans)
    flow = [line for line in lines if "at" in line]
    assert flow[-1]["requests"] == {"engine-0": 0}
    assert (flow[-1]["in_flight"], flow[-1]["buffered"]) == (0, 0)
    answer = RunReader(RunFolder(tmp_path / "run")).answer("timeline", {})
    assert [lane["name"] for lane in answer["lanes"]] == ["learner", "generation", "engine-0"]
