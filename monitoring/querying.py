"""A Prometheus of one's own for as long as a block, and its HTTP API."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).resolve().parent
START_SECONDS = 30.0
PORTS_TRIED = 3
"""Somebody else may take a free one before Prometheus does."""


@dataclass(frozen=True)
class Series:
    labels: Mapping[str, str]
    points: list[tuple[float, float]]
    """Seconds since 1970, and values."""


class QueryError(Exception):
    """Prometheus refused an expression, in its own words."""


class Api:
    """Of the Prometheus at `url`."""

    def __init__(self, url: str) -> None:
        self.url = url

    def at(self, expr: str, time: float | None = None) -> list[Series]:
        """Values of an expression at one time, or now."""
        data = self._get("query", query=expr, **({} if time is None else {"time": f"{time:.3f}"}))
        if data["resultType"] == "scalar":
            return [Series({}, [_point(data["result"])])]
        return [Series(each["metric"], [_point(each["value"])]) for each in data["result"]]

    def over(self, expr: str, start: float, end: float, step: float) -> list[Series]:
        data = self._get("query_range", query=expr, start=f"{start:.3f}", end=f"{end:.3f}", step=f"{step:.3f}")
        return [Series(each["metric"], [_point(pair) for pair in each["values"]]) for each in data["result"]]

    def ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=2) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def targets(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._get("targets", state="active")["activeTargets"]
        return found

    def _get(self, path: str, **parameters: str) -> Any:
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise QueryError(f"{parameters.get('query', path)}: {json.load(error).get('error')}") from error


def program(name: str) -> str:
    """Path of prometheus or promtool, from the environment of this Python or elsewhere. Raises RuntimeError."""
    own = str(Path(sys.executable).parent)
    found = shutil.which(name, path=f"{own}{os.pathsep}{os.environ.get('PATH', '')}")
    if found is None:
        raise RuntimeError(f"no {name} here: run scripts/get_prometheus.sh, or on Debian: apt install prometheus")
    return found


@contextmanager
def prometheus_of(targets: Path, data: Path, seconds: float = 1.0) -> Iterator[Api]:
    """A Prometheus with our rules, which scrapes what the files in `targets` name every `seconds`.

    Raises RuntimeError where it does not start, with its last words.
    """
    binary = program("prometheus")
    data.mkdir(parents=True, exist_ok=True)
    config = _config(targets, seconds)
    (data / "prometheus.yml").write_text(yaml.safe_dump(config), encoding="utf-8")
    for file in (HERE / "rules").glob("*.yml"):
        rules = yaml.safe_load(file.read_text(encoding="utf-8"))
        for group in rules["groups"]:
            group["interval"] = f"{seconds:g}s"
        (data / file.name).write_text(yaml.safe_dump(rules), encoding="utf-8")
    command = [binary, f"--config.file={data / 'prometheus.yml'}", f"--storage.tsdb.path={data / 'tsdb'}"]
    for _ in range(PORTS_TRIED):
        api = Api(f"http://127.0.0.1:{_free_port()}")
        address = f"--web.listen-address={api.url.removeprefix('http://')}"
        with open(data / "log", "w") as log:
            process = subprocess.Popen([*command, address, "--log.level=warn"], stdout=log, stderr=log)
        try:
            if _becomes_ready(api, process):
                yield api
                return
        finally:
            process.terminate()
            process.wait(20)
        if "address already in use" not in (data / "log").read_text():
            break
    raise RuntimeError(f"prometheus did not start:\n{(data / 'log').read_text()[-2000:]}")


def _becomes_ready(api: Api, process: subprocess.Popen[bytes]) -> bool:
    until = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < until:
        if api.ready():
            return process.poll() is None  # else another one answered at its address
        time.sleep(0.1)
    return False


def _config(targets: Path, seconds: float) -> dict[str, Any]:
    """That of prometheus.yml, with other paths and intervals, and nobody to send alerts to."""
    config: dict[str, Any] = yaml.safe_load((HERE / "prometheus.yml").read_text(encoding="utf-8"))
    config["global"] = {"scrape_interval": f"{seconds:g}s", "evaluation_interval": f"{seconds:g}s"}
    config["rule_files"] = ["recording.yml", "alerts.yml"]
    del config["alerting"]
    for job in config["scrape_configs"]:
        for discovery in job["file_sd_configs"]:
            discovery["files"] = [str(targets / "*.json")]
            discovery["refresh_interval"] = "1s"
    return config


def _point(pair: list[Any]) -> tuple[float, float]:
    return float(pair[0]), float(pair[1])


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
