"""What starts Prometheus, Alertmanager and Grafana: on loopback, pinned, and with names that go together."""

import re

import yaml
from monitoring_cases import MONITORING, alerts

COMPOSE = yaml.safe_load((MONITORING / "docker-compose.yml").read_text())
ALERTMANAGER = yaml.safe_load((MONITORING / "alertmanager.yml").read_text())


def test_images_are_pinned() -> None:
    for service in COMPOSE["services"].values():
        assert re.fullmatch(r"[a-z/]+:v?\d+\.\d+\.\d+", service["image"])


def test_everything_listens_on_loopback() -> None:
    started = (MONITORING / "start.sh").read_text()
    for name, service in COMPOSE["services"].items():
        said = " ".join([*service.get("command", ()), *service.get("environment", {}).values()])
        assert "127.0.0.1" in said, name
        assert "ports" not in service
    assert started.count("--web.listen-address=127.0.0.1:") == 2
    assert "GF_SERVER_HTTP_ADDR=127.0.0.1" in started


def test_alerts_are_sent_where_alertmanager_listens_and_graphs_are_asked_where_prometheus_does() -> None:
    prometheus = yaml.safe_load((MONITORING / "prometheus.yml").read_text())
    (sent_to,) = prometheus["alerting"]["alertmanagers"][0]["static_configs"][0]["targets"]
    assert f"--web.listen-address={sent_to}" in COMPOSE["services"]["alertmanager"]["command"]
    provisioned = MONITORING / "grafana" / "provisioning" / "datasources" / "prometheus.yml"
    (source,) = yaml.safe_load(provisioned.read_text())["datasources"]
    listens = source["url"].removeprefix("http://")
    assert f"--web.listen-address={listens}" in COMPOSE["services"]["prometheus"]["command"]


def test_what_grafana_is_given_is_there() -> None:
    environment = COMPOSE["services"]["grafana"]["environment"]
    for variable in ("GF_PATHS_PROVISIONING", "MONITORING_DASHBOARDS"):
        assert (MONITORING / environment[variable].removeprefix("/monitoring/")).is_dir()


def test_routes_and_inhibitions_name_what_exists() -> None:
    names = {alert["alert"] for alert in alerts()}
    receivers = {receiver["name"] for receiver in ALERTMANAGER["receivers"]}
    route = ALERTMANAGER["route"]
    assert {route["receiver"], *(each["receiver"] for each in route["routes"])} == receivers
    for rule in ALERTMANAGER["inhibit_rules"]:
        for matcher in (*rule["source_matchers"], *rule["target_matchers"]):
            assert set(matcher.partition('"')[2].strip('"').split("|")) <= names
