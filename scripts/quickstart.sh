#!/usr/bin/env bash
# Trains SmolLM2-135M-Instruct by asynchronous GRPO with a real vLLM server, on two CPU cores, in about ten minutes.
# Running it again skips what is done. Arguments go to `asyncgrpo train`, for example --training.max_steps=5.
set -euo pipefail
cd "$(dirname "$0")/.."
ASYNCGRPO_EXTRA=cpu scripts/setup.sh
bin=${ASYNCGRPO_VENV:-.venv}/bin
run=runs/quickstart

if [ -f $run/summary.md ] && ! grep -q "^# .*: interrupted after" $run/summary.md; then
  cat $run/summary.md
  echo
  echo "This is the finished run in $run. Remove that folder to train again."
  [ $# -eq 0 ] || echo "Nothing was trained, so these arguments did nothing: $*"
  exit 0
fi
if [ -d $run ]; then
  aside=$run-unfinished-$(date +%Y%m%d-%H%M%S)
  echo "an earlier run did not finish: moving $run to $aside"
  mv $run "$aside"
fi
"$bin/python" scripts/quickstart/prepare.py runs/quickstart-assets
exec "$bin/asyncgrpo" train configs/quickstart_cpu.yaml "$@"
