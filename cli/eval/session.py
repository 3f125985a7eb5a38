"""The processes of an evaluation: the evaluating one, and a retriever where none serves the right passages already.

retriever up -> evaluate FOLDER -> all questions answered -> both are ended
                    '--died--> started again, goes on with what is not answered
"""

import asyncio
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import httpx

from cli.eval.folder import CONFIG
from cli.eval.progress import Progress
from cli.run import plan, ports
from cli.run.processes import Program, Supervisor
from services.env_search.manifest import read_manifest
from shared.addresses import host_and_port
from shared.cancellation import stop
from shared.config import Config, without_password
from shared.cores import available, thread_shares
from shared.errors import UserError
from shared.evaluation.records import Answered, AnswersFile, Job, Question

LOOK_S, HEALTH_S = 0.3, 2.0


def with_retriever(config: Config, folder: Path) -> tuple[Config, bool]:
    """The configuration with the retriever to ask, and whether it is to be started here.

    One that answers at env.url with the fingerprint of this configuration's index is used as it is: that of the run,
    for example. UserError where env.url is another machine's business and does not answer.
    """
    if config.env.kind != "search":
        return config, False
    if not plan.serves_search(config):
        if not ports.answers(*host_and_port(config.env.url)):
            shown = without_password(config.env.url)
            raise UserError(
                f"no retriever answers at env.url = '{shown}': start it, or name the passages with "
                "--search.corpus FILE to have one started here."
            )
        return config, False
    if not Path(config.search.corpus).is_file():
        raise UserError(f"search.corpus = '{config.search.corpus}' is not a file: write the path of the passages.")
    manifest = read_manifest(config.index_dir)
    if manifest is not None and _served_index(config.env.url) == manifest.fingerprint:
        return config, False
    values: dict[str, object] = {"search.port": ports.free_port()}
    values["env.url"] = plan.search_url(int(str(values["search.port"])))
    if manifest is None and not config.search.index:
        values |= {"run.root": str(folder), "run.name": "retriever"}  # its index is built in there
    return plan.with_values(config, values), True


class EvalSession:
    """One command's part of an evaluation."""

    def __init__(
        self, config: Config, job: Job, folder: Path, questions: Sequence[Question], progress: Progress
    ) -> None:
        self.config, self.job, self.folder, self.progress = config, job, folder, progress
        self.total = len(questions)
        self.answers: list[Answered] = []
        self._file = AnswersFile(folder, questions, job.samples)
        self._stop = asyncio.Event()

    async def run(self, starts_retriever: bool) -> bool:
        """True when every question is answered, False when the user stopped it. UserError with what a process said."""
        supervisor = Supervisor(self.progress.note)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                loop.add_signal_handler(number, self._stop.set)
        self._take()
        work = asyncio.ensure_future(self._work(supervisor, starts_retriever))
        failed = asyncio.ensure_future(supervisor.failure())
        stopped = asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait({work, failed, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if failed.done():
                raise failed.result()
            if work.done():
                work.result()
            return work.done()
        finally:
            await stop(work, failed, stopped)
            await supervisor.stop()
            self._take()

    async def _work(self, supervisor: Supervisor, starts_retriever: bool) -> None:
        if starts_retriever:
            self.progress.phase("starting the retriever")
            supervisor.start(self._program("env_search", "services.env_search"))
            await self._until_served()
        self.progress.phase("loading the model")
        supervisor.start(self._program("evaluate", "services.actor.evaluate", str(self.folder)))
        done = asyncio.ensure_future(supervisor.finished("evaluate"))
        try:
            while not done.done():
                await asyncio.wait({done}, timeout=LOOK_S)
                self._take()
        finally:
            done.cancel()

    async def _until_served(self) -> None:
        """However long it takes: an index may have to be built first."""
        while True:
            if await asyncio.to_thread(_served_index, self.config.env.url) is not None:
                return
            await asyncio.sleep(LOOK_S)

    def _take(self) -> None:
        new = self._file.read()
        self.answers += new
        self.progress.show(new)

    async def _is_done(self) -> bool:
        self._take()
        return len(self.answers) >= self.total

    def _program(self, name: str, module: str, *words: str) -> Program:
        logs = self.folder / "logs"
        logs.mkdir(exist_ok=True)
        _, threads = thread_shares(self.config, len(available()))
        return Program(
            name=name,
            command=[sys.executable, "-P", "-m", module, *words],
            environment=plan.child_environment(self.folder / CONFIG, "", plan.threads(threads)),
            log=logs / f"{name}.log",
            is_done=self._is_done if name == "evaluate" else None,
        )


def _served_index(url: str) -> str | None:
    """The fingerprint of the index that a retriever serves; empty for one that does not say; None: no answer."""
    with suppress(httpx.HTTPError, ValueError):
        answer = httpx.get(f"{url.rstrip('/')}/health", timeout=HEALTH_S, trust_env=False)
        if answer.status_code == 200:
            found = answer.json()
            return str(found.get("index", "")) if isinstance(found, dict) else ""
    return None
