#!/usr/bin/env bash
# Prometheus, and Alertmanager and Grafana where they are installed, without Docker; on loopback, until Ctrl-C.
#
#   monitoring/start.sh [FOLDER]      their data go to FOLDER (default: monitoring/data)
#
# Debian and Ubuntu: apt install prometheus prometheus-alertmanager, or scripts/get_prometheus.sh, which puts Prometheus
# into the environment. Grafana: https://grafana.com/grafana/download.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
data=$(realpath -m "${1:-$here/data}")
PATH=$PATH:$here/../.venv/bin  # where scripts/get_prometheus.sh puts it

command -v prometheus >/dev/null || {
  echo "start: no prometheus: run scripts/get_prometheus.sh; or on Debian and Ubuntu: apt install prometheus" >&2
  exit 1
}
mkdir -p "$data" "$here/targets"
trap 'kill $(jobs -p) 2>/dev/null; wait' EXIT

prometheus --config.file="$here/prometheus.yml" --storage.tsdb.path="$data/prometheus" \
  --storage.tsdb.retention.time=90d --web.listen-address=127.0.0.1:9090 --log.level=warn &
echo "start: Prometheus at http://127.0.0.1:9090, which looks for runs in $here/targets"

alertmanager=$(command -v prometheus-alertmanager || command -v alertmanager || true)
if [ -n "$alertmanager" ]; then
  "$alertmanager" --config.file="$here/alertmanager.yml" --storage.path="$data/alertmanager" \
    --web.listen-address=127.0.0.1:9093 --cluster.listen-address= --log.level=warn &
  echo "start: Alertmanager at http://127.0.0.1:9093"
else
  echo "start: no alertmanager here: alerts show at http://127.0.0.1:9090/alerts only"
fi

grafana_home=${GRAFANA_HOME:-/usr/share/grafana}
if command -v grafana >/dev/null && [ -d "$grafana_home" ]; then
  GF_SERVER_HTTP_ADDR=127.0.0.1 GF_SERVER_HTTP_PORT=3000 GF_AUTH_ANONYMOUS_ENABLED=true \
    GF_AUTH_ANONYMOUS_ORG_ROLE=Viewer GF_PATHS_DATA="$data/grafana" GF_PATHS_LOGS="$data/grafana" \
    GF_PATHS_PROVISIONING="$here/grafana/provisioning" MONITORING_DASHBOARDS="$here/dashboards" \
    grafana server --homepath "$grafana_home" >"$data/grafana.log" 2>&1 &
  echo "start: Grafana at http://127.0.0.1:3000"
else
  echo "start: no grafana here; monitoring/preview.py draws the dashboards without it"
fi
wait -n
