#!/usr/bin/env bash
# Puts `prometheus` and `promtool` of Debian's (or Ubuntu's) package into the environment, for tests that check
# dashboards and alerts. Needs no root, and starts no service. Does nothing where both are there.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=$(realpath "${ASYNCGRPO_VENV:-.venv}/bin")
PATH=$bin:$PATH
if command -v prometheus >/dev/null && command -v promtool >/dev/null; then exit 0; fi
command -v apt-get >/dev/null || {
  echo "get_prometheus: no prometheus, and no apt-get to have it from; see https://prometheus.io/download/" >&2
  exit 1
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/lists/partial" "$work/archives/partial"
apt() {
  apt-get -qq -o Dir::State::Lists="$work/lists" -o Dir::Cache::Archives="$work/archives" \
    -o Dir::Cache::pkgcache="$work/pkgcache.bin" -o Dir::Cache::srcpkgcache="$work/srcpkgcache.bin" \
    -o APT::Sandbox::User="$(id -un)" -o Acquire::Retries=3 "$@"
}
echo "get_prometheus: downloading the package prometheus ..."
cd "$work"
apt update
apt download prometheus
dpkg-deb -x prometheus_*.deb unpacked
install unpacked/usr/bin/prometheus unpacked/usr/bin/promtool "$bin"
