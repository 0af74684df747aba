"""`asyncgrpo view RUN_FOLDER`: look at a run in a browser, also while it goes on."""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import webbrowser
from collections.abc import Sequence
from typing import Any

from asyncgrpo.errors import ConfigError

TOKEN_VARIABLE = "ASYNCGRPO_VIEW_TOKEN"
READ_SECONDS = 60.0
"""An answer may take; only a disk that hangs takes so long."""


def add(commands: Any) -> None:
    """Register the command with argparse."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "view",
        help="look at a run in a browser",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="asyncgrpo view RUN_FOLDER [--port N] [--host ADDRESS] [--open]",
        allow_abbrev=False,
    )
    parser.add_argument("folder", metavar="RUN_FOLDER", help="folder of a run, finished or not")
    parser.add_argument("--port", type=int, default=0, metavar="N", help="port [a free one]")
    parser.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help="address to listen on [127.0.0.1]")
    parser.add_argument("--open", action="store_true", help="open it in the browser of this machine")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, overrides: Sequence[str]) -> int:
    """Serve until Ctrl-C. Raises ConfigError, RunFolderError."""
    from asyncgrpo.observe.run_folder import check_holds_run

    refuse(overrides, "view")
    if not 0 <= arguments.port <= 65535:
        raise ConfigError(f"--port {arguments.port} is no port; 0 takes a free one")
    folder = check_holds_run(arguments.folder)
    try:
        asyncio.run(_serve(folder, arguments))
    except KeyboardInterrupt:
        print()
    return 0


async def _serve(folder: Any, arguments: argparse.Namespace) -> None:
    from asyncgrpo.observe.page.handlers import PageHandlers
    from asyncgrpo.observe.page.reader import RunReader
    from asyncgrpo.observe.server import MetricsServer, is_loopback

    token = None if is_loopback(arguments.host) else _token()
    page = PageHandlers(RunReader(folder), READ_SECONDS)
    settings = ("--host", "--port")
    async with MetricsServer(None, arguments.host, arguments.port, token, page, settings=settings) as server:
        address = f"{server.url}/" + (f"?token={token}" if token else "")
        print(f"{folder.path} at {address}  (Ctrl-C ends it)", flush=True)
        if arguments.open:
            await asyncio.to_thread(webbrowser.open, address)
        await asyncio.Event().wait()


def _token() -> str:
    """Of the environment, or a new one."""
    from asyncgrpo.config.secrets import secret_of

    given = secret_of(TOKEN_VARIABLE, "--host") if os.environ.get(TOKEN_VARIABLE) else None
    return given or secrets.token_urlsafe(24)


def refuse(overrides: Sequence[str], command: str) -> None:
    """Raise ConfigError for an option that `command` does not have."""
    if overrides:
        name = overrides[0].partition("=")[0]
        raise ConfigError(f"unknown option {name}; `asyncgrpo {command} --help` lists what there is")


_DESCRIPTION = """\
Serve a page on which to look at a run, finished or going on: curves, the timeline of learner and engines, samples token
by token, settings, warnings. It reads the run folder and nothing else, and asks no other host for anything. A run that
goes on serves the same page itself, beside /metrics, at the address that it prints."""

_EPILOG = f"""\
examples:
  asyncgrpo view runs/first --open
  ssh -L 8123:127.0.0.1:8123 host asyncgrpo view runs/first --port 8123   then http://localhost:8123/ here
  asyncgrpo view runs/first --host 0.0.0.0                                wants the token in the address it prints

Elsewhere than on loopback the page wants a token: that of the environment variable {TOKEN_VARIABLE}, or a new one."""
