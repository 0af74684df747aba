"""Looks at a run as Prometheus and an open page do, until it is ended.

    python scripts/benchmarks/looker.py URL --metrics 1 --page 4    # seconds between two looks; 0: none

A process of its own: what it costs is not what the run costs.
"""

from __future__ import annotations

import argparse
import http.client
import time
import urllib.request
from collections.abc import Sequence

PAGE = ("run", "warnings", "series", "timeline")
"""What a page asks for at every look at a run that goes on, in one view or another."""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--metrics", type=float, default=0.0)
    parser.add_argument("--page", type=float, default=0.0)
    options = parser.parse_args(arguments)
    paths = [(options.metrics, ["metrics"]), (options.page, [f"api/{name}" for name in PAGE])]
    every = [(seconds, wanted) for seconds, wanted in paths if seconds]
    due = [time.monotonic() + seconds for seconds, _ in every]
    while every:
        nearest = min(range(len(due)), key=due.__getitem__)
        time.sleep(max(0.0, due[nearest] - time.monotonic()))
        due[nearest] = time.monotonic() + every[nearest][0]
        for path in every[nearest][1]:
            try:
                urllib.request.urlopen(f"{options.url}/{path}", timeout=60).read()
            except (OSError, http.client.HTTPException):  # the run is over
                return


if __name__ == "__main__":
    main()
