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
# Files side by side, one process per core up to four: each holds torch and a model, and more would need much memory.
exec "$bin/python" -m pytest -n logical --maxprocesses 4 --dist loadfile "$@"
