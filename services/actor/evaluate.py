"""`python -m services.actor.evaluate FOLDER`: ask every question of an evaluation n times and write down the answers.

A process of its own beside any training: it loads one version of the weights and never changes it. It plays the same
rollouts as an actor does, against the same retriever, and differs in what a sample that cannot be scored means: here
it is tried again, since nobody waits for it. Started again, it goes on with what is not answered.

    questions x n samples, in order -> as many at once as an actor would run -> a question's last sample
    -> scored -> one line of answers.jsonl
"""

import asyncio
import logging
import os
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from services.actor.engines.choice import make_engine
from services.actor.engines.engine import CanaryRefused, Engine, EngineFailed
from services.actor.heartbeat import start_engine, watch_engine
from services.actor.metered import MeteredEngine
from services.actor.retrieval import RetrievalClient
from services.actor.rollout import Budget, Player, Rollout
from services.actor.text import Codec
from services.actor.verdicts import answered
from shared import weights
from shared.cancellation import stop
from shared.config import Config, without_password
from shared.errors import UserError
from shared.evaluation.records import AnswersFile, Job, Question, hold_answers, read_job, read_questions, weights_of
from shared.gpus import VISIBLE_VARIABLE, least_used, visible_gpus
from shared.messages import ENV_FAILED, WeightsNotice
from shared.model_files import find_model
from shared.seeds import derive
from shared.service import first_error, run_service
from shared.versions import Version

log = logging.getLogger("headrace")
LEAVES_S, LOOK_S = 30.0, 0.2  # how long a process that was told to end may take, and how often that is looked at
ATTEMPTS = 3  # at one sample that cannot be scored
PATIENCE = 5  # times rollout.deadline_s: a rollout of an evaluation holds nobody up
STUCK_S = 300.0  # without a token: an engine may compile before its first one
_SEED = 2  # what evaluations add to the run's seed; training and its own evaluation rounds have 0 and 1


@dataclass
class Asked:
    """A question under way."""

    question: Question
    prompt: list[int]
    rollouts: list[Rollout]
    left: int = field(init=False)

    def __post_init__(self) -> None:
        self.left = len(self.rollouts)


class Evaluation:
    """The unanswered part of a job."""

    def __init__(self, config: Config, job: Job, player: Player, file: AnswersFile) -> None:
        self.config, self.job, self.player, self.file = config, job, player, file
        self._env_failed = 0  # samples since the environment last answered

    async def run(self, questions: list[Question]) -> None:
        """Ask them all. Raises UserError when the retriever is gone."""
        samples = self._samples(questions)
        rows = max(1, min(self.rows, len(questions) * self.job.samples))
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(rows):
                    group.create_task(self._play_on(samples, group))
        except BaseExceptionGroup as error:
            raise first_error(error) from None

    @property
    def rows(self) -> int:
        """Rollouts at once: what the engine was made for."""
        return self.config.actor.groups * self.config.rollout.group_size

    def _samples(self, questions: list[Question]) -> Iterator[tuple[Asked, int]]:
        for question in questions:
            prompt = self.player.codec.prompt(question.messages, self.config.env.prompt)
            asked = Asked(question, prompt, [Rollout() for _ in range(self.job.samples)])
            for sample in range(self.job.samples):
                yield asked, sample

    async def _play_on(self, samples: Iterator[tuple[Asked, int]], group: asyncio.TaskGroup) -> None:
        for asked, sample in samples:
            asked.rollouts[sample] = await self._play(asked, sample)
            asked.left -= 1
            if not asked.left:
                group.create_task(self._file(asked))  # mathematics may wait; the row goes on

    async def _play(self, asked: Asked, sample: int) -> Rollout:
        """One sample, tried again while it cannot be scored: with another seed where the environment failed, since it
        may never answer the same query, and with the same one where time ran out, since another draw would be a
        shorter answer in place of a long one.
        """
        rollout, draw = Rollout(), 0
        for _ in range(ATTEMPTS):
            rollout = Rollout()
            seed = self._seed(asked.question, sample, draw)
            try:
                async with asyncio.timeout(PATIENCE * self.config.rollout.deadline_s):
                    await self.player.play(rollout, asked.prompt, self.job.temperature, seed)
            except TimeoutError:
                log.warning("question %s took too long", asked.question.id)
            if rollout.scored:
                self._env_failed = 0
                break
            draw += rollout.status == ENV_FAILED
            self._watch_environment(rollout)
        return rollout

    def _watch_environment(self, rollout: Rollout) -> None:
        self._env_failed += rollout.status == ENV_FAILED
        if self._env_failed > ATTEMPTS * self.rows:
            url = without_password(self.config.env.url)
            raise UserError(
                f"the retriever at {url} has not answered for {self._env_failed} rollouts in a row: start it again, "
                "then repeat the command; what is answered is kept."
            )

    def _seed(self, question: Question, sample: int, draw: int) -> Callable[[int], int]:
        place = (self.job.seed, _SEED, zlib.crc32(question.source.encode()), question.index, sample, draw)
        return lambda turn: derive(*place, turn)

    async def _file(self, asked: Asked) -> None:
        self.file.append(await answered(asked.question, asked.rollouts, self.config, self.job.texts))


async def serve(config: Config, folder: Path, engine: Engine | None = None) -> None:
    """Answer what is not answered yet. Raises UserError for what a person can mend, EngineFailed where it is broken."""
    job = read_job(folder)
    if job is None:
        raise UserError(f"{folder} holds no evaluation: `headrace eval` makes one.")
    with await _alone(folder):
        await _serve(config, job, folder, engine)


async def _alone(folder: Path) -> IO[str]:
    """Hold the answers while the returned file is open: the process of a command that was killed may still be there."""
    for _ in range(int(LEAVES_S / LOOK_S)):
        with suppress(UserError):
            return hold_answers(folder)
        await asyncio.sleep(LOOK_S)
    return hold_answers(folder)


async def _serve(config: Config, job: Job, folder: Path, engine: Engine | None) -> None:
    asked = read_questions(folder)
    file = AnswersFile(folder, asked, job.samples)
    file.cut_torn_line()
    done = {a.number for a in file.read()}
    questions = [q for q in asked if q.number not in done]
    log.info("%d questions to answer, %d samples each", len(questions), job.samples)
    if questions:
        adapters = weights_of(folder, job) if config.learner.lora_rank else None
        if engine is None:
            await asyncio.to_thread(take_gpus, config.actor.tensor_parallel)
            engine = make_engine(config)  # imports torch, which sees those GPUs alone
        await _answer(config, job, questions, file, MeteredEngine(engine), adapters)


def take_gpus(count: int) -> None:
    """Where more are visible than `count`, leave the least used ones visible.

    An evaluation has no lease, since it has no Redis: what keeps others off its GPUs is the memory that it uses there.
    """
    gpus = visible_gpus() or []
    if len(gpus) <= count:
        return
    taken = least_used(gpus, count)
    os.environ[VISIBLE_VARIABLE] = ",".join(gpu.uuid for gpu in taken)
    for gpu in taken:
        log.log(
            logging.WARNING if gpu.busy else logging.INFO,
            "takes %s, of whose memory %.0f %% is in use by others",
            gpu.uuid,
            100 * gpu.used,
        )


async def _answer(
    config: Config,
    job: Job,
    questions: list[Question],
    file: AnswersFile,
    engine: MeteredEngine,
    adapters: Path | None,
) -> None:
    codec = await asyncio.to_thread(Codec, find_model(config.model.path))
    retriever = RetrievalClient.of(config) if config.env.kind == "search" else None
    try:
        await start_engine(engine)
        if adapters is not None:
            await put_beside(engine, adapters, config.weights.swap_timeout_s)
        log.info("engine %s is up", engine.name)
        player = Player(engine, codec, Budget.of(config), retriever.search if retriever is not None else None)
        work = asyncio.ensure_future(Evaluation(config, job, player, file).run(questions))
        watch = asyncio.ensure_future(watch_engine(engine, lambda: engine.busy, STUCK_S))
        try:
            await asyncio.wait({work, watch}, return_when=asyncio.FIRST_COMPLETED)
            (work if work.done() else watch).result()
        finally:
            await stop(work, watch)
    finally:
        if retriever is not None:
            await retriever.close()
        await engine.close()


async def put_beside(engine: Engine, adapters: Path, limit_s: float) -> None:
    """Have the engine, which holds the base, answer with these adapters, as an actor does with those of a version.

    UserError for adapters that do not fit, EngineFailed for an engine that has not taken them `limit_s` after they were
    read.
    """
    digest, size = await asyncio.to_thread(weights.digest_of, adapters)  # nobody has announced them
    unsaid = WeightsNotice(version=Version(0, 0), location="", digest=digest, size=size, published=0.0, canary=[])
    try:
        await engine.verify(unsaid, adapters)
        async with asyncio.timeout(limit_s):
            await engine.swap(unsaid, adapters)
    except CanaryRefused as error:
        raise UserError(f"the adapters in {adapters} cannot be put beside their base: {error}.") from None
    except TimeoutError:
        raise EngineFailed(
            f"the adapters in {adapters} were not put beside their base within weights.swap_timeout_s = {limit_s:g} s"
        ) from None


if __name__ == "__main__":
    try:
        run_service("evaluate", lambda config: serve(config, Path(sys.argv[1])))
    except EngineFailed as error:
        print(f"evaluate: {error}", file=sys.stderr, flush=True)
        os._exit(1)
    os._exit(0)  # as an actor: taking torch down politely can take seconds
