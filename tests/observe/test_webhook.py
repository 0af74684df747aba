"""What a webhook is told of the end of a run."""

import json
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from asyncgrpo.errors import ConfigError, EngineError
from asyncgrpo.observe.run_folder import RunFolder
from asyncgrpo.observe.webhook import check_webhook, end_told


@contextmanager
def hook(status: int = 200) -> Iterator[tuple[str, list[Any]]]:
    """URL of one, and the bodies it was sent."""
    told: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            told.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(status)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/secret-path", told
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[RunFolder]:
    with RunFolder.create(tmp_path / "first") as made:
        yield made


def trained(folder: RunFolder, steps: int) -> None:
    folder.metrics_file.write_text("".join(f'{{"step": {step}}}\n' for step in range(1, steps + 1)))


@pytest.mark.parametrize(("steps", "event"), [(4, "finished"), (3, "interrupted")])
def test_an_end_is_told(folder: RunFolder, steps: int, event: str) -> None:
    with hook() as (url, told), end_told(url, "first", folder, 4):
        trained(folder, steps)
    assert told == [
        {
            "run": "first",
            "event": event,
            "step": steps,
            "target_steps": 4,
            "error": None,
            "folder": str(folder.path),
            "text": f"first {event} after {steps} of 4 steps",
        }
    ]


def test_a_failure_is_told_without_logins(folder: RunFolder) -> None:
    with hook() as (url, told), pytest.raises(EngineError), end_told(url, "first", folder, 4):
        raise EngineError("http://user:word@host:8000 answered 500")
    (message,) = told
    assert (message["event"], message["step"]) == ("failed", 0)
    assert message["error"] == "EngineError: http://***@host:8000 answered 500"
    assert message["text"] == f"first failed after 0 of 4 steps: {message['error']}"


def test_a_signal_is_no_failure(folder: RunFolder) -> None:
    with hook() as (url, told), pytest.raises(KeyboardInterrupt), end_told(url, "first", folder, 4):
        raise KeyboardInterrupt
    assert told[0]["event"] == "interrupted"


@pytest.mark.parametrize("status", [500, 404])
def test_one_that_refuses_does_no_harm_and_its_address_stays_secret(
    folder: RunFolder, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING), hook(status) as (url, told), end_told(url, "first", folder, 4):
        pass
    assert len(told) == 1
    assert f"was not told that the run interrupted: it answered {status}" in caplog.text
    assert "secret-path" not in caplog.text


def test_one_that_is_not_there_does_no_harm(folder: RunFolder, caplog: pytest.LogCaptureFixture) -> None:
    with hook() as (url, _):
        pass
    with caplog.at_level(logging.WARNING), end_told(url, "first", folder, 4):
        pass
    assert "Connection refused" in caplog.text


def test_an_address_is_named_by_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_webhook(None) is None
    monkeypatch.setenv("HOOK", "https://example.org/x")
    assert check_webhook("HOOK") == "https://example.org/x"
    monkeypatch.setenv("HOOK", "example.org/x")
    with pytest.raises(ConfigError, match=r"^observe\.webhook_env=HOOK: .* holds no http:// or https:// URL$"):
        check_webhook("HOOK")
    monkeypatch.delenv("HOOK")
    with pytest.raises(ConfigError, match=r"observe\.webhook_env=HOOK: that environment variable is not set"):
        check_webhook("HOOK")
