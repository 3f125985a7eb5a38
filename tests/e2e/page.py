"""A replay process over a filled buffer, and a headless Chromium to look at its page."""

import asyncio
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from tokenizers import Tokenizer

from shared.config import Config, build
from shared.redis_client import connect_async
from tests.e2e.command import ATLAS, REPOSITORY
from tests.replay.stored_groups import Pieces, fill

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = [
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--force-prefers-reduced-motion"),
]
START_S = 60.0


def open_browser(folder: Path) -> Any:
    """A WebDriver of a Chromium with a profile of its own; skips where there is none, saying what to install."""
    binary = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    driver = shutil.which("chromedriver")
    if binary is None or driver is None:
        pytest.skip("there is no Chromium with its driver here: install the packages chromium and chromium-driver")
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed: it drives the browser")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for flag in [*FLAGS, f"--user-data-dir={folder}"]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    browser.set_script_timeout(30)
    return browser


class Page:
    """The replay service as a process, and its page in a browser."""

    def __init__(self, folder: Path, redis_url: str, groups: int, rollouts: int, first: Pieces) -> None:
        self.config = self._config(redis_url, groups, rollouts)
        self.tokenizer = Tokenizer.from_file(str(ATLAS / "policy" / "tokenizer.json"))
        self.ids = asyncio.run(self._fill(groups, rollouts, first))
        self.browser = open_browser(folder / "profile")
        (folder / "run.toml").write_text(self.config.to_toml())
        self.log = folder / "replay.log"
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("HEADRACE_")}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "services.replay"],
                env={**inherited, "PYTHONPATH": str(REPOSITORY), "HEADRACE_CONFIG": str(folder / "run.toml")}
                | {"HEADRACE_REDIS__URL": redis_url},
                cwd=folder,
                stdout=log,
                stderr=log,
            )
        self.url = f"http://127.0.0.1:{self.config.replay.port}"
        self._wait_until_it_serves()

    def open(self, path: str = "/", width: int = 1400, height: int = 1000) -> None:
        """Load the page anew, at this size of the window."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        self.browser.get("about:blank")
        self.browser.get(self.url + path)

    def js(self, script: str, *values: Any) -> Any:
        """The value of a script, run in the page."""
        return self.browser.execute_script(script, *values)

    def find(self, selector: str) -> Any:
        """The first element of a selector, waited for."""
        return self.until(lambda: next(iter(self.browser.find_elements("css selector", selector)), None), selector)

    def texts(self, selector: str) -> list[str]:
        """What the elements of a selector hold."""
        return self.js("return [...document.querySelectorAll(arguments[0])].map((e) => e.textContent)", selector)

    def until(self, condition: Any, what: str, within_s: float = 20.0) -> Any:
        """The first true value of a condition."""
        deadline = time.monotonic() + within_s
        while not (found := condition()):
            assert time.monotonic() < deadline, f"no {what} within {within_s:g} s: {self.texts('#status')}"
            time.sleep(0.02)
        return found

    def scatter(self) -> dict[str, Any]:
        """What was drawn: `gate` in pixels, the numbers of points `within` it, `passed` by and `refused`, the places
        of the `accepted`.
        """
        told = self.js("return {...document.getElementById('scatter').dataset}")
        places = [tuple(float(v) for v in place.split(",")) for place in told["accepted"].split()]
        counts = {name: int(told[name]) for name in ("within", "passed", "refused")}
        return {"gate": float(told["gate"]), "accepted": places} | counts

    def complaints(self) -> list[str]:
        """What the browser's console holds: errors of scripts, and whatever the content policy refused."""
        return [entry["message"] for entry in self.browser.get_log("browser")]

    def close(self) -> None:
        """End both."""
        self.browser.quit()
        self.process.terminate()
        self.process.wait(timeout=20)

    def _config(self, redis_url: str, groups: int, rollouts: int) -> Config:
        return build(
            {
                "run": {"name": f"page-{os.urandom(4).hex()}", "steps": 100},
                "redis": {"url": redis_url},
                "model": {"path": str(ATLAS / "policy")},
                "data": {"train": str(ATLAS / "data" / "train.jsonl")},
                "learner": {"batch": 64},
                "replay": {"capacity": max(groups, 192), "max_lag": 1, "port": _free_port()},
                "rollout": {"group_size": rollouts},
            }
        )

    async def _fill(self, groups: int, rollouts: int, first: Pieces) -> list[str]:
        client = connect_async(self.config.redis.url)
        try:
            return await fill(client, self.config, self.tokenizer, groups, rollouts, first)
        finally:
            await client.aclose()

    def _wait_until_it_serves(self) -> None:
        deadline = time.monotonic() + START_S
        while True:
            try:
                if httpx.get(f"{self.url}/health").status_code == 200:
                    return
            except httpx.TransportError:
                pass
            assert self.process.poll() is None and time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.1)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]
