"""Whole runs whose end somebody is told of."""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from run_cases import engine_beside, make_job, mean_token, run_config

from asyncgrpo.errors import ConfigError, RewardError
from asyncgrpo.launch import run_job

SMALL: dict[str, Any] = {
    "generation": {"num_generations": 2, "max_completion_length": 6},
    "training": {"max_steps": 2, "groups_per_step": 1},
    "observe": {"webhook_env": "RUN_HOOK", "log_format": "json", "run_name": "called"},
}


def fails(completion_ids: Any, **columns: Any) -> list[float]:
    raise ValueError("on purpose")


@pytest.mark.parametrize(("reward", "event"), [(mean_token, "finished"), (fails, "failed")])
def test_the_end_of_a_run_is_told(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reward: Any, event: str
) -> None:
    told: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            told.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server, engine_beside(tiny_model, script=None) as engine:
        threading.Thread(target=server.serve_forever).start()
        monkeypatch.setenv("RUN_HOOK", f"http://127.0.0.1:{server.server_port}/x")
        try:
            run_job(make_job(run_config(tiny_model, tmp_path, [engine.url], **SMALL), reward=reward), config_text="")
        except RewardError:
            assert event == "failed"
        finally:
            server.shutdown()
    (message,) = told
    assert (message["run"], message["event"], message["target_steps"]) == ("called", event, 2)
    assert message["step"] == (2 if event == "finished" else 0)
    assert ("on purpose" in (message["error"] or "")) == (event == "failed")
    lines = [json.loads(line) for line in (tmp_path / "run" / "logs" / "orchestrator.log").read_text().splitlines()]
    assert {line["run"] for line in lines} == {"called"}
    assert {1, None} <= {line["step"] for line in lines} or event == "failed"


def test_a_webhook_that_is_none_is_refused_before_a_model_loads(tiny_model: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"observe\.webhook_env=RUN_HOOK: that environment variable is not set"):
        make_job(run_config(tiny_model, tmp_path, **SMALL))
