"""What Prometheus and Grafana are given: rules that promtool takes, dashboards as written, and data for all of it."""

import ast
import importlib.util
import json
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import httpx
import msgspec
import pytest
import redis

from tests.e2e.command import REPOSITORY, Command

DEPLOY = REPOSITORY / "deploy"
RULES, ALERTS = (DEPLOY / "prometheus" / name for name in ("rules.yml", "alerts.yml"))
NEEDED = ("prometheus", "promtool")
MISSING = [name for name in NEEDED if shutil.which(name) is None]
needs_prometheus = pytest.mark.skipif(bool(MISSING), reason=f"Debian's package prometheus is not installed: {MISSING}")


def _dashboards() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_dashboards", DEPLOY / "grafana" / "make_dashboards.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _expressions(file: Path) -> list[str]:
    """Of a rule file, as one line each."""
    words = [re.sub(r"\s+#.*$", "", line) for line in file.read_text().splitlines()]
    text = re.sub(r">-\s+", "", "\n".join(words))
    found = re.findall(r"expr: (.*?)(?=\n\s+(?:- record|- alert|for|labels):|\Z)", text, re.DOTALL)
    return [" ".join(expr.split()).strip("'") for expr in found]


def test_the_dashboards_are_those_the_script_writes():
    made = _dashboards().files()
    folder = DEPLOY / "grafana" / "dashboards"
    assert {file.name: file.read_text() for file in folder.iterdir()} == made
    titles = [panel["title"] for panel in json.loads(made["overview.json"])["panels"][:4]]
    assert titles == ["Learner idle", "Acceptance", "Lag", "Drift"], "the four to read first"


def test_the_help_of_a_metric_stands_by_itself():
    """Prometheus and Grafana show it without the one before."""
    sources = [*(REPOSITORY / "services").glob("*/metrics.py"), REPOSITORY / "shared" / "metrics.py"]
    trees = [ast.walk(ast.parse(file.read_text())) for file in sources]
    texts = [node.value for tree in trees for node in tree if isinstance(node, ast.Constant)]
    helps = [text for text in texts if isinstance(text, str)]
    assert len(helps) > 100
    assert not [text for text in helps if re.search("^the same|^share of them|of that name", text)]


@needs_prometheus
@pytest.mark.parametrize(
    "words",
    [
        ("check", "config", DEPLOY / "prometheus" / "prometheus.yml"),
        ("check", "rules", RULES, ALERTS),
        pytest.param(("test", "rules", Path(__file__).with_name("alerts_test.yml")), marks=pytest.mark.slow),
    ],
    ids=["config", "rules", "each alert fires, and only when it should"],
)
def test_promtool_takes(words):
    answer = subprocess.run(["promtool", *words], capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stdout + answer.stderr


def test_operations_explains_every_alert():
    text = (REPOSITORY / "docs" / "operations.md").read_text()
    names = re.findall(r"alert: (\w+)", ALERTS.read_text())
    assert len(names) > 10 and [name for name in names if f"`{name}`" not in text] == []


@pytest.fixture(scope="module")
def ports() -> dict[str, int]:
    """A free port for each of them."""
    sockets = {name: socket.socket() for name in ("replay", "env-search", "learner", "prometheus")}
    for one in sockets.values():
        one.bind(("127.0.0.1", 0))
    found = {name: one.getsockname()[1] for name, one in sockets.items()}
    for one in sockets.values():
        one.close()
    return found


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, redis_server_url: str, ports: dict[str, int]) -> Iterator[Command]:
    """Atlas with two actors, long enough for everything that is looked at."""
    with redis.Redis.from_url(redis_server_url) as client:
        client.flushall()
        client.config_set("maxmemory", "1gb")
    words = ["up", str(REPOSITORY / "examples" / "atlas.toml"), "--run.name=watched", "--run.steps=500"]
    words += [f"--redis.url={redis_server_url}", f"--replay.port={ports['replay']}", "--eval.limit=8"]
    words += [f"--search.port={ports['env-search']}", f"--learner.port={ports['learner']}"]
    words += ["--actor.threads=1", "--learner.threads=1"]
    command = Command(tmp_path_factory.mktemp("watched"), *words)
    yield command
    command.kill()
    with redis.Redis.from_url(redis_server_url) as client:
        client.config_set("maxmemory", "0")


@pytest.fixture(scope="module")
def prometheus(
    tmp_path_factory: pytest.TempPathFactory, run: Command, redis_server_url: str, ports: dict[str, int]
) -> Iterator[httpx.Client]:
    """The real server with the real configuration: only where the services are is told, and the pace is quicker."""
    folder = tmp_path_factory.mktemp("prometheus")
    actors = [f"127.0.0.1:{port}" for port in _actor_ports(run, redis_server_url)]
    config = (DEPLOY / "prometheus" / "prometheus.yml").read_text()
    config = config.replace("scrape_interval: 5s", "scrape_interval: 1s").replace("interval: 15s", "interval: 1s")
    config = re.sub(r"\[rules.yml, alerts.yml\]", json.dumps([str(RULES), str(ALERTS)]), config)
    for job in ("replay", "env-search", "learner", "actor"):
        targets = actors if job == "actor" else [f"127.0.0.1:{ports[job]}"]
        config, found = re.subn(
            rf"dns_sd_configs: \[{{names: \[{job}\].*", f"static_configs: [{{targets: {json.dumps(targets)}}}]", config
        )
        assert found == 1
    (folder / "prometheus.yml").write_text(config)
    words = [f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
    words += [f"--web.listen-address=127.0.0.1:{ports['prometheus']}", "--log.level=warn"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(["prometheus", *words], stdout=log, stderr=log)
    with httpx.Client(base_url=f"http://127.0.0.1:{ports['prometheus']}/api/v1", timeout=20) as client:
        yield client
    process.terminate()
    process.wait(20)


def _actor_ports(run: Command, url: str) -> list[int]:
    with redis.Redis.from_url(url) as client:

        def beats() -> list[dict]:
            keys = list(client.scan_iter("headrace:{watched}:actor:*"))
            return [msgspec.json.decode(beat) for beat in client.mget(keys) if beat] if keys else []

        run.wait_until(
            lambda: sum(beat["state"] == "running" for beat in beats()) == 2, "two actors that run", within_s=180
        )
        return [beat["port"] for beat in beats()]


def _values(prometheus: httpx.Client, expression: str) -> list[float]:
    answer = prometheus.get("/query", params={"query": expression}).json()
    assert answer["status"] == "success", (expression, answer)
    result = answer["data"]["result"]
    return [value for series in result if (value := float(series["value"][1])) == value]


def _until_all_have_data(prometheus: httpx.Client, run: Command, expressions: list[str], within_s: float) -> None:
    left = list(dict.fromkeys(expressions))

    def none_left() -> bool:
        time.sleep(1.0)
        try:
            left[:] = [expr for expr in left if not _values(prometheus, expr)]
        except httpx.TransportError:
            return False  # it is starting
        return not left

    try:
        run.wait_until(none_left, "data for all", within_s)
    except AssertionError:
        pytest.fail(f"no data after {within_s:g} s for: {left}\n{run.said[-2000:]}")


@needs_prometheus
@pytest.mark.slow
@pytest.mark.e2e
@pytest.mark.timeout(600)
def test_every_target_is_up_and_every_dashboard_and_rule_has_data(prometheus: httpx.Client, run: Command):
    alerts = _expressions(ALERTS)
    assert len(alerts) == ALERTS.read_text().count("alert:")
    # an alert that is silent gives nothing, so of alerts every series they look at has to be there
    named = sorted({name for expr in alerts for name in re.findall(r"headrace[\w:]+", expr) if not name.endswith("_")})
    panels = [
        target["expr"].replace("$__rate_interval", "30s")
        for text in _dashboards().files().values()
        for panel in json.loads(text)["panels"]
        for target in panel["targets"]
    ]
    assert len(named) > 12 and len(panels) > 50
    unanswered = [f'up{{job="{job}"}} == 1' for job in ("replay", "env-search", "learner")]
    unanswered += ['count(up{job="actor"} == 1) == 2', '{__name__=~"headrace_.*_event_loop_lag_seconds"}']
    _until_all_have_data(prometheus, run, [*unanswered, *panels, *_expressions(RULES), *named], within_s=240)
    targets = prometheus.get("/targets").json()["data"]["activeTargets"]
    assert [target["lastError"] for target in targets] == [""] * 5
    rules = prometheus.get("/rules").json()["data"]["groups"]
    assert {rule["health"] for group in rules for rule in group["rules"]} == {"ok"}
    assert not _values(prometheus, 'ALERTS{alertstate="firing", severity="critical"}'), "nothing is wrong with this run"
