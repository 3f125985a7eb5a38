"""The torch engine: a transformers model in a thread of its own, for machines without vLLM and for fast tests.

The event loop hands requests and commands to the thread through a queue and never waits for it otherwise. A swap
happens between two decode steps.
"""

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from services.actor.engines import engine
from services.actor.engines.canary import check_canary, tolerance
from services.actor.engines.engine import EngineFailed, Generation, Sampling
from services.actor.engines.torch_request import Request
from services.actor.text import Codec
from shared import malloc
from shared.config import Config
from shared.messages import WeightsNotice
from shared.model_files import find_model
from shared.versions import Version

if TYPE_CHECKING:  # torch and transformers are imported in the engine's thread: they take seconds
    import torch

    from services.actor.engines.torch_batch import Batch
    from services.actor.engines.torch_model import TorchModel

log = logging.getLogger("headrace")
_UNPUBLISHED = Version(0, 0)  # labels tokens that are sampled before any notice; the service does not ask for such


class TorchEngine:
    """See `services.actor.engines.engine.Engine`."""

    name = "torch"

    def __init__(self, config: Config) -> None:
        self.config = config
        self.version: Version | None = None
        self.progress = 0
        self.device = ""
        self._commands: queue.SimpleQueue[Callable[[], None] | Request | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="torch-engine", daemon=True)
        self._model: TorchModel | None = None
        self._batch: Batch | None = None
        self._verified: tuple[str, dict[str, torch.Tensor]] | None = None  # a digest, and the tensors of its files
        self._failure: str = ""
        self._futures: set[asyncio.Future[Any]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def start(self) -> None:
        """Load the model in the engine's thread."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()
        await self._call(self._load)

    async def generate(self, ids: list[int], sampling: Sampling) -> Generation:
        """One turn."""
        future = self._future()
        row = Request(list(ids), sampling, deliver=lambda r: self._resolve(future, r.generation()))
        self._commands.put(row)
        try:
            return await future
        finally:
            row.cancelled = not future.done() or future.cancelled()

    async def verify(self, notice: WeightsNotice, directory: Path) -> None:
        """By the announced digest, outside of the thread; what was read is kept for the swap."""
        self._verified = None
        state = await asyncio.to_thread(self._loaded[0].read, directory, notice.digest)
        self._verified = notice.digest, state

    async def swap(self, notice: WeightsNotice, directory: Path) -> float:
        """Exchange what was verified, in the thread."""
        if self._verified is None or self._verified[0] != notice.digest:
            await self.verify(notice, directory)
        assert self._verified is not None
        (_, state), self._verified = self._verified, None
        stall = await self._call(lambda: self._exchange(notice, state))
        await asyncio.to_thread(malloc.give_back, notice.version.number)
        return stall

    async def score(self, sequences: Sequence[Sequence[int]], starts: Sequence[int]) -> list[list[float]]:
        """Between two decode steps."""
        return await self._call(lambda: self._loaded[0].score(sequences, starts))

    async def close(self) -> None:
        """End the thread after its current step."""
        self._commands.put(None)
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join, 4.0)

    @property
    def _loaded(self) -> "tuple[TorchModel, Batch]":
        assert self._model is not None and self._batch is not None
        return self._model, self._batch

    def _load(self) -> None:
        import torch

        from services.actor.engines.torch_batch import Batch
        from services.actor.engines.torch_model import TorchModel

        threads = engine.threads_of(self.config)
        torch.set_num_threads(threads)
        directory = find_model(self.config.model.path)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        self.device = device
        chosen = self.config.model.dtype
        dtype = {"auto": torch.float32 if device == "cpu" else torch.bfloat16}.get(chosen) or getattr(torch, chosen)
        self._model = TorchModel(directory, device, dtype, self.config.learner)
        self._batch = Batch(
            self._model, Codec(directory).decode, engine.end_tokens(directory), alone=self.config.actor.exact
        )

    def _exchange(self, notice: WeightsNotice, state: "dict[str, torch.Tensor]") -> float:
        model, batch = self._loaded
        started = time.monotonic()
        limit = tolerance(self.config, str(model.dtype).removeprefix("torch."), notice.canary)
        old = model.exchange(state)
        try:
            scored = model.score([c.tokens for c in notice.canary], [c.start for c in notice.canary])
            check_canary(notice.canary, scored, limit)
        except engine.CanaryRefused:
            model.exchange(old)
            raise
        batch.forget_cache()
        self.version = notice.version
        return time.monotonic() - started

    def _run(self) -> None:
        try:
            import torch

            with torch.inference_mode():
                while self._take_commands():
                    if self._batch is not None and not self._batch.empty:
                        self.progress += self._batch.step(self.version or _UNPUBLISHED)
            self._fail("the engine was closed")
        except Exception as error:
            log.exception("the torch engine failed")
            self._fail(f"{type(error).__name__}: {error}")

    def _take_commands(self) -> bool:
        """Run what is queued, waiting for something when there is nothing else to do; False at the end."""
        while True:
            idle = self._batch is None or self._batch.empty
            try:
                command = self._commands.get(block=idle)
            except queue.Empty:
                return True
            if command is None:
                return False
            if isinstance(command, Request):
                self._loaded[1].joining.append(command)
            else:
                command()
            if not self._commands.empty():
                continue
            return True

    async def _call(self, work: Callable[[], Any]) -> Any:
        future = self._future()

        def command() -> None:
            try:
                value = work()
            except ValueError as error:  # UserError and CanaryRefused belong to the caller, the rest ends the engine
                self._resolve(future, error)
            else:
                self._resolve(future, value)

        self._commands.put(command)
        return await future

    def _future(self) -> asyncio.Future[Any]:
        if self._failure:
            raise EngineFailed(self._failure)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._futures.add(future)
        future.add_done_callback(self._futures.discard)
        return future

    def _resolve(self, future: asyncio.Future[Any], value: Any) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(_settle, future, value)

    def _fail(self, reason: str) -> None:
        self._failure = reason
        assert self._loop is not None
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._fail_all)

    def _fail_all(self) -> None:
        for future in list(self._futures):
            _settle(future, EngineFailed(self._failure))


def _settle(future: asyncio.Future[Any], value: Any) -> None:
    if future.done():
        return
    if isinstance(value, Exception):
        future.set_exception(value)
    else:
        future.set_result(value)
