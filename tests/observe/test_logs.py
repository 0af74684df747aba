import asyncio
import json
import logging
import re
from pathlib import Path

import pytest

from asyncgrpo.errors import RunFolderError
from asyncgrpo.observe.logs import counted_logs, log_context, log_tail, setup_logging

LOG = logging.getLogger("asyncgrpo.orchestrator")


def test_lines_carry_step_and_version(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "orchestrator.log"
    with setup_logging(path, "info"):
        LOG.debug("hidden")
        LOG.info("before")
        with log_context(step=3, version=2):
            LOG.warning("engine %s is slow", "engine-0")
        LOG.info("after")
    time = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z "
    lines = path.read_text().splitlines()
    assert [re.sub(f"^{time}", "", line) for line in lines] == [
        "INFO step=- version=- asyncgrpo.orchestrator: before",
        "WARNING step=3 version=2 asyncgrpo.orchestrator: engine engine-0 is slow",
        "INFO step=- version=- asyncgrpo.orchestrator: after",
    ]
    assert all(re.match(time, line) for line in lines)
    assert capsys.readouterr().err == lines[1] + "\n"


def test_logger_is_as_before_afterwards(tmp_path: Path) -> None:
    logger = logging.getLogger("asyncgrpo")
    before = logger.level, logger.propagate, list(logger.handlers)
    with setup_logging(tmp_path / "log", "debug"):
        assert logger.level == logging.DEBUG
    assert (logger.level, logger.propagate, logger.handlers) == before


async def test_tasks_keep_their_own_context(tmp_path: Path) -> None:
    async def work(step: int) -> None:
        with log_context(step=step):
            await asyncio.sleep(0)
            LOG.info("work")

    with setup_logging(tmp_path / "log"):
        async with asyncio.timeout(5), asyncio.TaskGroup() as tasks:
            tasks.create_task(work(1))
            tasks.create_task(work(2))
    assert [line.split()[2] for line in (tmp_path / "log").read_text().splitlines()] == ["step=1", "step=2"]


def test_missing_folder_is_named(tmp_path: Path) -> None:
    with (
        pytest.raises(RunFolderError, match=r"cannot write .*no/log: No such file"),
        setup_logging(tmp_path / "no/log"),
    ):
        pass


def test_a_log_tail_is_the_last_lines(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert log_tail(log, 3) == f"no log at {log}"
    log.touch()
    assert log_tail(log, 3) == f"last lines of {log}:\n    (empty)"
    log.write_text("".join(f"line {i}\n" for i in range(100_000)) + "\n\n")
    assert log_tail(log, 2) == f"last lines of {log}:\n    line 99998\n    line 99999"


def test_lines_are_counted_by_level_while_somebody_asks(tmp_path: Path) -> None:
    seen: list[str] = []
    with setup_logging(tmp_path / "log", "info"):
        with counted_logs(seen.append):
            for level in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR):
                logging.getLogger("asyncgrpo.somewhere").log(level, "line")
        logging.getLogger("asyncgrpo.somewhere").error("line")
    assert seen == ["info", "warning", "error"]


def test_lines_may_be_objects_of_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "log"
    with setup_logging(path, "info", json_run="first"), log_context(step=3, version=2):
        LOG.info("two\nlines of %s", "http://user:word@host/x")
        try:
            raise ValueError("http://user:word@host")
        except ValueError:
            LOG.exception("bad")
    first, second = (json.loads(line) for line in path.read_text().splitlines())
    assert first.pop("time").endswith("Z")
    assert first == {
        "level": "info",
        "run": "first",
        "step": 3,
        "version": 2,
        "logger": "asyncgrpo.orchestrator",
        "message": "two\nlines of http://***@host/x",
    }
    assert (second["level"], second["message"]) == ("error", "bad")
    assert second["traceback"].splitlines()[-1] == "ValueError: http://***@host"
    assert "ERROR step=3 version=2 asyncgrpo.orchestrator: bad" in capsys.readouterr().err, "still lines to read"


def test_without_a_step_json_says_so(tmp_path: Path) -> None:
    with setup_logging(tmp_path / "log", json_run="first"):
        LOG.info("start")
    line = json.loads((tmp_path / "log").read_text())
    assert (line["step"], line["version"]) == (None, None)
