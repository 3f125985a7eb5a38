"""`docker compose` over this repository, in a project of its own with its own volumes, ports and password."""

import json
import os
import re
import secrets
import shlex
import shutil
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

REPOSITORY = Path(__file__).resolve().parents[2]
RUN = "atlas"
# base images of other names are passed on: an engine that cannot pull has only what was made on it
IMAGES = ("HEADRACE_PYTHON_IMAGE", "HEADRACE_REDIS_IMAGE")
# of each name on the compose network and port: the addresses, and whether something of ours answers there
LOOK = """
import json, socket, sys, urllib.request
found = {}
for name, port in json.loads(sys.argv[1]):
    addresses = sorted({a[4][0] for a in socket.getaddrinfo(name, port, socket.AF_INET, socket.SOCK_STREAM)})
    told = [urllib.request.urlopen(f"http://{a}:{port}/metrics", timeout=20).read() for a in addresses]
    found[name] = [b"headrace_" + name.replace("-", "_").encode() in text for text in told]
print(json.dumps(found))
"""


def why_not() -> str:
    """What this machine lacks for these tests; empty when nothing."""
    if shutil.which("docker") is None:
        return "docker is not installed"
    for words in (["docker", "version"], ["docker", "compose", "version"]):
        answer = subprocess.run(words, capture_output=True, text=True, check=False)
        if answer.returncode:
            last = (answer.stderr.strip() or answer.stdout.strip()).splitlines()
            return f"`{' '.join(words)}` fails: {last[-1] if last else answer.returncode}"
    return ""


class Stack:
    """The services of compose.yaml with small settings. `down` removes everything that they made."""

    def __init__(self, folder: Path, settings: dict[str, str]) -> None:
        self._folder = folder
        self.project = f"headrace-test-{secrets.token_hex(4)}"
        self.port = _free_port()
        self.password = secrets.token_hex(16)
        told = {"HEADRACE_REDIS_PASSWORD": self.password, "HEADRACE_REPLAY_PORT": self.port}
        told |= {name: os.environ[name] for name in IMAGES if name in os.environ}
        (folder / "env").write_text("".join(f"{name}={value}\n" for name, value in told.items()))
        self._override = folder / "override.json"
        self.set(settings)
        self._words = ["docker", "compose", "--env-file", str(folder / "env")]
        self._words += ["-f", str(REPOSITORY / "compose.yaml"), "-f", str(self._override)]

    def set(self, settings: dict[str, str]) -> None:
        """The settings of our services from their next start on."""
        services = {name: {"environment": settings} for name in ("replay", "env-search", "learner", "actor", "report")}
        self._override.write_text(json.dumps({"services": services}))

    def compose(self, *words: str, within_s: float = 300, check: bool = True) -> str:
        """Run `docker compose WORDS`; its output."""
        return docker(*words, begin=self._words, project=self.project, within_s=within_s, check=check)

    def redis(self, *words: str) -> str:
        """Run redis-cli inside the container of Redis."""
        return self.compose("exec", "-T", "redis", "redis-cli", "--raw", *words).strip()

    def containers(self, service: str) -> list[str]:
        """Ids of those that run."""
        return self.compose("ps", "-q", service).split()

    def inspect(self, container: str) -> dict[str, Any]:
        """What the engine knows of it."""
        return json.loads(docker("inspect", container))[0]

    def health(self) -> dict[str, Any]:
        """What replay says of the run; empty while it does not answer."""
        try:
            answer = httpx.get(f"http://127.0.0.1:{self.port}/health", timeout=5)
            return answer.json() if answer.status_code == 200 else {}
        except (httpx.HTTPError, ValueError):
            return {}

    def step(self) -> int:
        """The next step to be trained, -1 while nobody says."""
        return self.health().get("step", -1)

    def actors(self) -> dict[str, int]:
        """The actors that generate, by id, and the step of the weights of each; a newcomer has none yet."""
        ids = self.redis("SMEMBERS", f"headrace:{{{RUN}}}:actors").split()
        told = [self.redis("GET", f"headrace:{{{RUN}}}:actor:{id}") for id in ids]
        beats = {id: json.loads(beat) for id, beat in zip(ids, told, strict=True) if beat}
        return {id: beat["version"][1] for id, beat in beats.items() if beat["version"] is not None}

    def handed_back(self) -> list[tuple[str, int]]:
        """Tasks that are with an actor that reports no more: its name, and for how many ms it has not renewed them."""
        fields = self.redis("XPENDING", f"headrace:{{{RUN}}}:tasks", "actors", "-", "+", "1000").split()
        pending = [(who, int(idle)) for who, idle in zip(fields[1::4], fields[2::4], strict=True)]
        living = self.actors()
        return [(who, idle) for who, idle in pending if who not in living]

    def answering(self, targets: list[tuple[str, int]]) -> dict[str, list[bool]]:
        """From inside the network: for each address of a service's name, whether it serves metrics of this service."""
        return json.loads(self.compose("exec", "-T", "report", "python3", "-c", LOOK, json.dumps(targets)))

    def shell(self, command: str) -> None:
        """A line of the documentation, with this project's containers and volumes."""
        line = command.replace("docker compose", " ".join(map(shlex.quote, self._words)))
        line = line.replace("headrace_", f"{self.project}_")
        docker("-ec", line, begin=["bash"], project=self.project, folder=self._folder)

    def counted(self) -> dict[str, int]:
        """Groups of the run by what became of them, from replay's metrics."""
        text = httpx.get(f"http://127.0.0.1:{self.port}/metrics", timeout=10).text
        found = re.findall(r'headrace_replay_run_groups_total\{what="(\w+)"\} (\S+)', text)
        return {what: int(float(value)) for what, value in found}

    def until(self, condition: Callable[[], Any], what: str, within_s: float) -> None:
        """Wait; on failure say what the services said."""
        deadline = time.monotonic() + within_s
        while not condition():
            if time.monotonic() > deadline:
                logs = self.compose("logs", "--no-color", "--tail", "15", check=False)
                raise AssertionError(f"no {what} within {within_s:g} s; health {self.health()}\n{logs}")
            time.sleep(1.0)

    def down(self) -> None:
        """Containers, network and volumes go; the images stay."""
        self.compose("down", "--volumes", "--timeout", "10", check=False)


def docker(
    *words: str,
    begin: list[str] | None = None,
    project: str = "",
    folder: Path | None = None,
    within_s: float = 300,
    check: bool = True,
) -> str:
    """Run a docker command; AssertionError with its output when it fails."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    environment = {**inherited, **({"COMPOSE_PROJECT_NAME": project} if project else {})}
    command = [*(begin or ["docker"]), *words]
    answer = subprocess.run(
        command, capture_output=True, text=True, env=environment, timeout=within_s, check=False, cwd=folder
    )
    if check and answer.returncode:
        raise AssertionError(
            f"{' '.join(words)} ended with {answer.returncode}:\n{answer.stdout}{answer.stderr}"[-4000:]
        )
    return answer.stdout


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]
