#!/usr/bin/env bash
# The whole check, as CI runs it: environment, style, types, layers, tests. Arguments go to pytest;
# `scripts/test.sh -m "not vllm"` leaves out the tests that start a real vLLM server (minutes).
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh
scripts/get_prometheus.sh || [ -z "${ASYNCGRPO_CI:-}" ]   # elsewhere, the tests that need it say so
bin=${ASYNCGRPO_VENV:-.venv}/bin
"$bin/ruff" check .
"$bin/ruff" format --check .
"$bin/mypy"
"$bin/lint-imports" >/dev/null || "$bin/lint-imports"
# Files side by side, one process more than there are cores, since many tests wait for deadlines and servers; but four at
# most: each holds torch and a model, and more would need much memory.
processes=$(($(nproc) < 4 ? $(nproc) + 1 : 4))
exec "$bin/python" -m pytest -n "$processes" --dist loadfile "$@"
