"""One rollout: turns of the policy and answers of the environment, token in, token out.

    prompt | sampled ... </search> | \\n\\n<information> ... </information>\\n\\n | sampled ... </answer>
    mask     1 1 1 1 1 1 1 1 1 1 1   0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0     1 1 1 1 1 1 1

Sampled ids are carried verbatim; environment text is encoded once, appended and masked out. The mask is made when a
token arrives, by position, never from text.
"""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from services.actor import tags
from services.actor.engines.engine import Engine, Sampling, add_run
from services.actor.observation import Document, observation
from services.actor.retrieval import RetrievalFailed
from services.actor.text import Codec
from shared.config import Config
from shared.messages import ENV_FAILED, FINISHED, TIMED_OUT, TRUNCATED
from shared.versions import Version

Search = Callable[[str, int], Awaitable[list[Document]]]  # (query, seed of the turn)


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Limits of a rollout, in tokens and turns."""

    max_tokens: int  # prompt, sampled and environment together
    max_turn_tokens: int  # sampled in one turn
    max_turns: int = 0  # with search; one more generation follows
    max_observation_tokens: int = 0

    @classmethod
    def of(cls, config: Config) -> "Budget":
        """The limits that a configuration sets."""
        return cls(
            max_tokens=config.rollout.max_tokens,
            max_turn_tokens=config.rollout.max_turn_tokens,
            max_turns=config.env.max_turns,
            max_observation_tokens=config.env.max_observation_tokens,
        )


@dataclass
class Rollout:
    """What came after the prompt. `status` is TIMED_OUT until the rollout ends by itself."""

    ids: list[int] = field(default_factory=list)
    mask: list[bool] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)  # of the masked-in tokens
    version_runs: list[tuple[int, Version]] = field(default_factory=list)  # over the masked-in tokens
    turns: list[tuple[int, int]] = field(default_factory=list)  # sampled pieces: [start, end)
    pieces: list[tuple[str, str]] = field(default_factory=list)  # ("policy" | "environment", text)
    documents: list[list[str]] = field(default_factory=list)  # ids, per search
    indexes: set[str] = field(default_factory=set)  # that these are from, where the retriever says it
    searches: int = 0
    env_seconds: float = 0.0
    env_failure: str = ""  # why the environment did not answer
    status: str = TIMED_OUT

    @property
    def scored(self) -> bool:
        """Whether it ended by itself, so that a reward means something."""
        return self.status in (FINISHED, TRUNCATED)

    @property
    def sampled_text(self) -> str:
        """What the policy wrote, and nothing else."""
        return "".join(text for who, text in self.pieces if who == "policy")


class Player:
    """Plays rollouts of one kind of environment against an engine."""

    def __init__(self, engine: Engine, codec: Codec, budget: Budget, search: Search | None) -> None:
        """`search` None: a single turn that ends with an EOS token or its budget."""
        self.engine, self.codec, self.budget, self.search = engine, codec, budget, search

    async def play(self, rollout: Rollout, prompt: list[int], temperature: float, seed: Callable[[int], int]) -> None:
        """Fill `rollout` in place, so that a caller who runs out of time still has what there is. `seed`: of a turn."""
        if self.search is None:
            finish = await self._turn(rollout, prompt, temperature, seed(0))
            rollout.status = FINISHED if finish == "eos" else TRUNCATED
            return
        for turn in range(self.budget.max_turns + 1):
            finish = await self._turn(rollout, prompt, temperature, seed(turn))
            if finish is None or finish == "length":
                rollout.status = TRUNCATED
                return
            action = tags.parse_action(rollout.pieces[-1][1])
            if action.kind == "answer":
                rollout.status = FINISHED
                return
            if turn == self.budget.max_turns:
                break
            try:
                appended = await self._answer(rollout, prompt, action, self.search, seed(turn))
            except RetrievalFailed as error:
                rollout.status, rollout.env_failure = ENV_FAILED, str(error)
                return
            if not appended:
                break
        rollout.status = TRUNCATED

    async def _turn(self, r: Rollout, prompt: list[int], temperature: float, seed: int) -> str | None:
        room = self.budget.max_tokens - len(prompt) - len(r.ids)
        if room <= 0:
            return None
        stop = tags.STOP_STRINGS if self.search else ()
        sampling = Sampling(temperature, min(room, self.budget.max_turn_tokens), seed, stop)
        got = await self.engine.generate(prompt + r.ids, sampling)
        r.turns.append((len(r.ids), len(r.ids) + len(got.ids)))
        r.ids += got.ids
        r.mask += [True] * len(got.ids)
        r.logprobs += got.logprobs
        for count, version in got.version_runs:
            add_run(r.version_runs, count, version)
        r.pieces.append(("policy", self.codec.decode(got.ids)))
        return got.finish

    async def _answer(self, r: Rollout, prompt: list[int], action: tags.Action, search: Search, seed: int) -> bool:
        """Append the environment's answer; False when there is no room for it and a token after it."""
        room = self.budget.max_tokens - len(prompt) - len(r.ids) - 1
        if action.kind == "search":
            started = time.monotonic()
            try:
                found = await search(action.content, seed)
            finally:
                r.env_seconds += time.monotonic() - started
            r.searches += 1
            r.documents.append([d.id for d in found])
            r.indexes |= {d.index for d in found if d.index}
            limit = min(room, self.budget.max_observation_tokens)
            ids = observation(found, self.codec.encode, limit, self.codec.special_tokens)
        else:
            ids = self.codec.encode(tags.HINT)
        if ids is None or len(ids) > room:
            return False
        r.ids += ids
        r.mask += [False] * len(ids)
        r.pieces.append(("environment", self.codec.decode(ids)))
        return True
