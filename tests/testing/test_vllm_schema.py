"""The fake's requests and answers, held against vLLM's own protocol classes in a process that has imported them."""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from asyncgrpo.config import RunConfig
from asyncgrpo.generation.client import EngineClient
from asyncgrpo.testing.fake_engine import FakeEngine
from asyncgrpo.testing.faults import GENERATE

READ_BY_VLLM = """
import json, sys
from vllm.entrypoints.scale_out.token_in_token_out.protocol import GenerateRequest, GenerateTokensResponse

body, answer = json.load(sys.stdin)
params = GenerateRequest.model_validate(body).sampling_params
read = {name: getattr(params, name) for name in body["sampling_params"]}
print(json.dumps([read, GenerateTokensResponse.model_validate(answer).model_dump()]))
"""


def without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value


@pytest.mark.vllm
@pytest.mark.vllm
async def test_requests_and_answers_are_what_vllm_reads_and_writes(tiny_model: Path) -> None:
    async with asyncio.timeout(120):
        async with FakeEngine(tiny_model) as engine, EngineClient(engine.url, "e0", RunConfig(), "1") as client:
            engine.core.version = "1:0"
            await client.generate((5, 6), "run-0-0-0", max_tokens=4)
            body = engine.calls(GENERATE)[0].body
            async with aiohttp.ClientSession() as session, session.post(engine.url + GENERATE, json=body) as response:
                answer = await response.json()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", READ_BY_VLLM),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "VLLM_LOGGING_LEVEL": "ERROR"},
        )
        output, _ = await process.communicate(json.dumps([body, answer]).encode())
    assert process.returncode == 0
    read, written = json.loads(output.decode().splitlines()[-1])
    assert read == body["sampling_params"], "every sampling parameter is one that vLLM knows"
    assert without_nulls(written) == without_nulls(answer)
