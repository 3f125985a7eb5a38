"""The vLLM engine. The one module that knows vLLM's generation and weight-swap calls.

A swap while requests run:

    pause (requests stay, their keys and values are dropped) -> reload -> repack tied embeddings -> new label -> resume
    -> CANARY beside the running requests -> accepted: the trial is over
                                          -> refused:  abort, reload the old files, cut off what was sampled in the
                                                       trial, go on from there

vLLM labels every token with the weights it was sampled under, so nothing depends on when an output is read. A
generation that ends during a trial waits for the verdict.
"""

import asyncio
import itertools
import logging
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.actor.engines import engine
from services.actor.engines.canary import check_canary, tolerance
from services.actor.engines.engine import CanaryRefused, EngineFailed, Finish, Generation, Sampling, add_run
from services.actor.engines.vllm_setup import engine_arguments, prepare_environment
from services.actor.text import Codec
from shared.adapters import CONFIG as ADAPTERS
from shared.config import Config
from shared.messages import CanarySequence, WeightsNotice
from shared.model_files import find_model
from shared.seeds import derive
from shared.versions import Version

log = logging.getLogger("headrace")
_STREAM_TOKENS = 32  # tokens between two signs of life of a request


@dataclass
class _Piece:
    """What one vLLM request gave: `labels` are of each token."""

    ids: list[int]
    logprobs: list[float]
    labels: list[str]
    finish: Finish | None  # None: aborted


class VllmEngine:
    """See `services.actor.engines.engine.Engine`."""

    name = "vllm"

    def __init__(self, config: Config) -> None:
        self.config = config
        self.version: Version | None = None
        self.progress = 0
        self.device = ""
        self._llm: Any = None
        self._names = itertools.count()
        self._labels = {"start": Version(0, 0)}  # what vLLM calls the weights -> which they are
        self._label = "start"
        self._refused: set[str] = set()
        self._trial: asyncio.Future[None] | None = None
        self._swapping = asyncio.Lock()
        self._adapter: Any = None  # the adapters of every request, where adapters are what is trained

    async def start(self) -> None:
        """Start vLLM's engine process; takes most of a minute on a CPU."""
        self._directory = find_model(self.config.model.path)
        self._codec = await asyncio.to_thread(Codec, self._directory)
        self._ends = engine.end_tokens(self._directory)
        self._accepted: Sequence[CanarySequence] = []
        prepare_environment(engine.threads_of(self.config))
        arguments = await asyncio.to_thread(self._arguments)
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        self._dtype: str = arguments["dtype"]
        # in a thread: it takes most of a minute, and this process must report itself and heed signals meanwhile
        self._llm = await asyncio.to_thread(AsyncLLM.from_engine_args, AsyncEngineArgs(**arguments))
        await self._llm.update_weight_version(self._label)
        # the first forward compiles kernels for this machine, which on a busy one takes longer than a swap may; what it
        # says is what these weights are known by, until a swap brings a canary
        self._accepted = [CanarySequence(tokens=[0, 0], start=1, logprobs=await self._score([0, 0], 1))]

    def _arguments(self) -> dict[str, Any]:
        import vllm  # noqa: F401  its import takes seconds and belongs into this thread
        from vllm.platforms import current_platform

        self.device = current_platform.device_type
        return engine_arguments(self.config, self._directory, current_platform.is_cpu())

    async def generate(self, ids: list[int], sampling: Sampling) -> Generation:
        """One turn, in one vLLM request unless refused weights came between."""
        out, logprobs, labels = [], [], []
        while True:
            piece = await self._request([*ids, *out], sampling, already=len(out))
            joint = len(out)
            out += piece.ids
            logprobs += piece.logprobs
            labels += piece.labels
            if self._trial is not None:
                await asyncio.shield(self._trial)
            kept = next((i for i, label in enumerate(labels) if label in self._refused), len(labels))
            finish = piece.finish if kept == len(labels) else None
            out, logprobs, labels = out[:kept], logprobs[:kept], labels[:kept]
            if joint and sampling.stop and (stop := self._stop_across(out, joint, sampling.stop)):
                out, logprobs, labels, finish = out[:stop], logprobs[:stop], labels[:stop], "stop"
            if finish is not None:
                runs: list[tuple[int, Version]] = []
                for label in labels:
                    add_run(runs, 1, self._labels[label])
                return Generation(out, logprobs, runs, finish)

    async def verify(self, notice: WeightsNotice, directory: Path) -> None:
        """By the announced digest."""
        await engine.verify_files(notice, directory)

    async def swap(self, notice: WeightsNotice, directory: Path) -> float:
        """As drawn above."""
        async with self._swapping:
            began = time.monotonic()
            label = f"{notice.version}#{next(self._names)}"
            self._labels[label] = notice.version
            self._trial = asyncio.get_running_loop().create_future()
            try:
                await self._llm.pause_generation(mode="keep", clear_cache=True)
                try:
                    await self._reload(directory, label)
                except EngineFailed:
                    raise
                except Exception as error:  # noqa: BLE001  whatever a worker raises about files it cannot use
                    await self._put_back()
                    raise CanaryRefused(f"vLLM cannot load {directory}: {error}") from None
                await self._llm.resume_generation()
                stall = time.monotonic() - began
                try:
                    await self._check(notice.canary)
                except CanaryRefused:
                    await self._go_back(label)
                    raise
                self._directory, self._label, self._accepted = directory, label, notice.canary
                self.version = notice.version
            finally:
                self._trial.set_result(None)
                self._trial = None
            return stall

    async def score(self, sequences: Sequence[Sequence[int]], starts: Sequence[int]) -> list[list[float]]:
        """As prompt log-probabilities, which vLLM computes anew whatever its prefix cache holds."""
        return await asyncio.gather(*(self._score(s, start) for s, start in zip(sequences, starts, strict=True)))

    async def close(self) -> None:
        """Stop the engine process."""
        if self._llm is not None:
            llm, self._llm = self._llm, None  # its destructor must not run when modules are gone already
            await asyncio.to_thread(llm.shutdown, 2.0)

    async def _reload(self, directory: Path, label: str) -> None:
        """Put the weights of `directory` in; the engine is paused."""
        if self.config.learner.lora_rank:
            await self._put_adapter(directory)
        else:
            await self._llm.collective_rpc("reload_weights", kwargs={"weights_path": str(directory)})
            await self._llm.collective_rpc("repack_embeddings")
        if not await self._llm.reset_prefix_cache():
            raise EngineFailed("vLLM did not empty its prefix cache, which holds keys of other weights")
        await self._llm.update_weight_version(label)

    async def _put_adapter(self, directory: Path) -> None:
        """Into the place of the ones before, so that running requests go on with them; a base alone has none."""
        from vllm.lora.request import LoRARequest

        self._adapter = None
        if (directory / ADAPTERS).is_file():
            await self._llm.add_lora(LoRARequest("policy", 1, str(directory), load_inplace=True))
            self._adapter = LoRARequest("policy", 1, str(directory))

    async def _check(self, canary: Sequence[CanarySequence]) -> None:
        scored = await self.score([c.tokens for c in canary], [c.start for c in canary])
        check_canary(canary, scored, tolerance(self.config, self._dtype, canary))

    async def _go_back(self, label: str) -> None:
        """Refused: end every request, put the old weights in and prove that they are; the requests then go on."""
        self._refused.add(label)
        await self._llm.pause_generation(mode="abort", clear_cache=True)
        await self._put_back()

    async def _put_back(self) -> None:
        """The accepted weights again, and the proof that they are there; the engine is paused, and goes on."""
        try:
            await self._reload(self._directory, self._label)
            await self._llm.resume_generation()
            await self._check(self._accepted)
        except Exception as error:  # noqa: BLE001  whatever it is, nobody knows now which weights answer
            raise EngineFailed(f"the old weights could not be put back: {error}") from None

    async def _request(self, ids: list[int], sampling: Sampling, already: int) -> _Piece:
        from vllm import SamplingParams
        from vllm.inputs.engine import tokens_input
        from vllm.sampling_params import RequestOutputKind

        parameters = SamplingParams(
            n=1,
            temperature=sampling.temperature,
            top_p=1.0,
            top_k=0,
            min_p=0.0,
            presence_penalty=0.0,
            frequency_penalty=0.0,
            repetition_penalty=1.0,
            seed=derive(sampling.seed, already) if already else sampling.seed,
            max_tokens=sampling.max_tokens - already,
            min_tokens=0,
            stop=list(sampling.stop),
            include_stop_str_in_output=True,
            stop_token_ids=list(self._ends),
            ignore_eos=True,  # the ends are named above, all of them
            logprobs=0,  # the sampled token's
            detokenize=bool(sampling.stop),
            skip_special_tokens=False,
            output_kind=RequestOutputKind.DELTA,
            stream_interval=_STREAM_TOKENS,
        )
        piece = _Piece([], [], [], None)
        async for output in self._outputs(tokens_input(ids), parameters):
            part = output.outputs[0]
            piece.ids += part.token_ids
            piece.logprobs += [at[i].logprob for at, i in zip(part.logprobs or [], part.token_ids, strict=True)]
            if output.finished:
                for span in part.weight_versions or []:
                    piece.labels += [span.version] * (span.end - span.start)
                piece.finish = _finish(part.finish_reason, part.stop_reason)
        if len(piece.labels) != len(piece.ids):
            raise EngineFailed(f"vLLM labelled {len(piece.labels)} of {len(piece.ids)} tokens with their weights")
        return piece

    async def _score(self, tokens: Sequence[int], start: int) -> list[float]:
        from vllm import SamplingParams
        from vllm.inputs.engine import tokens_input

        parameters = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0, detokenize=False)
        scored: Any = None
        async for output in self._outputs(tokens_input(list(tokens)), parameters):
            scored = output.prompt_logprobs or scored
        return [scored[i][tokens[i]].logprob for i in range(max(start, 1), len(tokens))]

    async def _outputs(self, prompt: Any, parameters: Any) -> AsyncIterator[Any]:
        """What vLLM answers to one request; EngineFailed where it is dead."""
        from vllm.v1.engine.exceptions import EngineDeadError

        try:
            name = f"r{next(self._names)}"
            async for output in self._llm.generate(prompt, parameters, name, lora_request=self._adapter):
                self.progress += 1
                yield output
        except EngineDeadError as error:
            raise EngineFailed(f"vLLM's engine process is dead: {error}") from None

    def _stop_across(self, out: list[int], joint: int, stop: Sequence[str]) -> int:
        """Where the first stop string is complete, after `joint`; 0: nowhere. A new request sees only its own text."""
        for end in range(joint + 1, len(out) + 1):
            text = self._codec.decode(out[:end])
            if any(s in text for s in stop):
                return end
        return 0


def _finish(reason: str | None, stop: int | str | None) -> Finish | None:
    if reason == "stop":
        return "eos" if isinstance(stop, int) else "stop"
    if reason == "length":
        return "length"
    if reason == "abort":
        return None
    raise EngineFailed(f"vLLM ended a request with '{reason}'")
