"""What can be known to go wrong before anything is started, cheap checks first; each is one sentence for the user."""

import os
import shutil
from itertools import islice
from pathlib import Path

from cli.run import devices, local_redis, one_gpu, plan, ports, retriever
from cli.run.prompt_lengths import PromptTokens, shortened
from cli.run.questions import Mark, change, kept, mark_of
from cli.run.recorder import EVENTS, METRICS, read_records
from cli.run.summary import has_saved
from cli.run.untrained import INDEX, LOCK, LOGS, is_untrained
from services.env_search.backend import IndexSpec, build_command
from services.env_search.corpus import parse_document
from services.env_search.index import refuse_mismatch
from services.env_search.manifest import read_manifest
from services.replay.policies import get_policy
from shared import checkpoints
from shared.addresses import host_and_port
from shared.config import Config
from shared.engine_choice import engine_of, has_vllm
from shared.errors import UserError
from shared.gpus import Gpu, trains_in_float32, visible_gpus
from shared.model_files import find_model, parameters_of, positions_of, read_settings, text_settings
from shared.prompts import PromptSource, open_prompts
from shared.redis_client import WEIGHTS_SHARE, wait_until_up
from shared.redis_rights import refuse_unusable
from shared.rewards import own
from shared.strangers import refuse_strangers

REDIS_ANSWER_S = 3.0
RUN_FOLDER_BYTES = 200 * 2**20  # logs, append-only file, events
VERSIONS_KEPT = 4  # published versions on disk at once, at most, about
VERSIONS_RECEIVED = 3  # of those in an actor's folder: in force, the one before, the one that comes
VERSIONS_IN_REDIS = 3  # where they travel through it: the newest two, and the one that is sent
MUCH_TO_SEND, NETWORK = 10**9, 1.25e9  # bytes; bytes a second
PASSAGES_READ = 100


class Preflight:
    """The checks of one configuration. `notes` collects what a person should know of a run that can be made; in a dry
    run also what is absent here but need not be, and that the folder is taken. `questions`: of the data sets.
    """

    def __init__(self, config: Config, *, resuming: bool = False, dry_run: bool = False) -> None:
        self.config, self.resuming, self.dry_run = config, resuming, dry_run
        self.notes: list[str] = []
        self.questions: dict[str, Mark] = {}

    def check(self) -> None:
        """Raise UserError at the first thing that is wrong."""
        get_policy(self.config.replay.policy)
        self._places()
        self._run_folder()
        self._engine()
        model_dir = self._model()
        self._retrieval()
        self._ports()
        self._passages()
        self._actors()
        self._gpus(model_dir)
        self._redis_memory(model_dir)
        if not self.dry_run:
            self._disk(model_dir)
        train, held_out = self._data("data.train", self.config.data.train), self._held_out()
        self._same_questions({"data.train": train, "data.eval": held_out})
        self._own_reward(train)
        if model_dir is not None:
            self._context(model_dir)
        if not self.dry_run and self.config.redis.url:
            wait_until_up(self.config.redis.url, REDIS_ANSWER_S)
            refuse_unusable(self.config.redis.url, self.config.run.name)
            refuse_strangers(self.config.redis.url, self.config.run.name, new=not self.resuming)
        if model_dir is not None:
            self._prompt_lengths(model_dir, {"data.train": train, "data.eval": held_out})

    def _absent(self, error: UserError) -> None:
        """Something that keeps this machine from starting the run now: fatal for a run, a note for a dry run."""
        if not self.dry_run:
            raise error
        self.notes.append(str(error))

    def _places(self) -> None:
        """Where the run keeps folders lies none but them, and where it keeps files no folder."""
        c, run = self.config, self.config.run_dir
        folders = [run, c.weights_dir, c.checkpoints_dir, run / LOGS, run / INDEX, run / local_redis.FOLDER]
        folders += [c.received_dir] if c.weights.transport != "folder" else []
        for folder in folders:
            if not self.resuming and run in folder.parents:
                continue  # of a start that may be made anew what is in the way goes, and any other is refused
            there = next(place for place in (folder, *folder.parents) if os.path.lexists(place))
            if not there.is_dir():
                self._absent(UserError(f"{there} is no folder, and the run needs one at {folder}: move it away."))
        for file in (run / EVENTS, run / METRICS, run / LOCK) if self.resuming else ():
            if file.is_dir():
                self._absent(UserError(f"{file} is a folder, and the run keeps a file there: move it away."))

    def _run_folder(self) -> None:
        folder = self.config.run_dir
        if not self.resuming and folder.is_dir() and any(folder.iterdir()) and not is_untrained(folder):
            self._absent(
                UserError(
                    f"the run folder {folder} exists already: continue it with `headrace up --resume {folder}`, "
                    "or choose another name with --run.name NAME."
                )
            )
        if self.resuming:
            self._same_redis(folder)
            self._checkpoints(folder)

    def _same_redis(self, folder: Path) -> None:
        if self.config.redis.url and (folder / local_redis.FOLDER).is_dir():
            raise UserError(
                f"the run in {folder} keeps its state in a Redis of its own, and redis.url is set: "
                "leave --redis.url and HEADRACE_REDIS__URL away."
            )

    def _checkpoints(self, folder: Path) -> None:
        """A run that had a checkpoint needs a whole one; one that was stopped before its first begins again."""
        root = self.config.checkpoints_dir
        if checkpoints.newest_whole(root, tell=self.notes.append) is None and has_saved(read_records(folder / EVENTS)):
            raise UserError(
                f"{root} holds no checkpoint any more, and this run had written some: put one back from a backup, or "
                "start a new run under another run.name."
            )

    def _engine(self) -> None:
        if self.config.actor.engine == "vllm" and not has_vllm():
            self._absent(
                UserError(
                    "actor.engine = 'vllm', and vLLM is not installed here: install it (`headrace doctor` says how), "
                    "or set actor.engine = 'torch'."
                )
            )

    def _model(self) -> Path | None:
        if not self.config.model.path:
            raise UserError(
                "model.path is empty: name the folder of the model to train, or a model in the local cache."
            )
        try:
            if self.config.model.kl_reference:
                find_model(self.config.model.kl_reference, "model.kl_reference")
            return find_model(self.config.model.path)
        except UserError as error:
            self._absent(error)
            return None

    def _retrieval(self) -> None:
        c = self.config
        if c.env.kind != "search":
            return
        if plan.serves_search(c):
            corpus = Path(c.search.corpus)
            if not corpus.is_file():
                self._absent(UserError(f"search.corpus = '{corpus}' is not a file: write the path of the passages."))
            elif not corpus.stat().st_size:
                raise UserError(f"search.corpus = '{corpus}' is empty: it needs a JSON line per passage.")
            if c.search.index and not (Path(c.search.index) / "manifest.json").is_file():
                build = build_command(corpus, Path(c.search.index), IndexSpec.of(c.search))
                self._absent(UserError(f"search.index = '{c.search.index}' holds no index: build it with `{build}`."))
            if c.search.backend == "dense" and not c.search.encoder:
                raise UserError("search.backend = 'dense' needs search.encoder, the sentence-embedding model.")
            return
        host, port = host_and_port(c.env.url)
        if c.search.corpus and plan.is_this_machine(c.env.url):
            leave = "" if self.resuming else "leave env.url out, or, "  # a resumed run has it in its configuration
            raise UserError(
                f"env.url = '{c.env.url}' is not the retriever that this run starts over search.corpus, at search.port "
                f"= {c.search.port}: {leave}to ask the other one, set search.corpus to ''."
            )
        if self.dry_run:
            return
        if ports.answers(host, port):
            if note := retriever.try_out(c):
                self.notes.append(note)
            return
        if not plan.is_this_machine(c.env.url):
            hint = "start it there, or mend the address, and see that this machine may reach it"
        else:
            hint = "set search.corpus to have a retriever started here, or start yours first"
        raise UserError(f"no retriever answers at env.url = '{c.env.url}': {hint}.")

    def _passages(self) -> None:
        """The passages and the index, where they are here, are what the retriever wants to find at its start."""
        corpus, spec = Path(self.config.search.corpus), IndexSpec.of(self.config.search)
        if not plan.serves_search(self.config) or not corpus.is_file():
            return
        with corpus.open("rb") as lines:
            for number, line in enumerate(islice(lines, PASSAGES_READ)):
                if len(line) < 3 and not line.strip():  # no passage, and the index does not count it
                    continue
                try:
                    parse_document(line, number)
                except ValueError as error:
                    raise UserError(f"search.corpus: {corpus} line {number + 1}: {error}") from None
        index = Path(self.config.search.index) if self.config.search.index else None
        if index and (manifest := read_manifest(index)):
            refuse_mismatch(corpus, index, spec, manifest)

    def _actors(self) -> None:
        if self.config.actor.count:
            return
        if not self.config.redis.url:
            raise UserError(
                "actor.count = 0 and redis.url is empty: no actor could reach the run's own Redis, and no group would "
                "ever be made. Set actor.count to 1 or more, or redis.url to a server that your actors know."
            )
        self.notes.append("actor.count = 0: the run waits until actors that are started elsewhere make groups.")

    def _gpus(self, model_dir: Path | None = None) -> None:
        gpus = visible_gpus() or []
        if said := devices.refusal(self.config, len(gpus)) or self._crowded(gpus, model_dir):
            self._absent(UserError(said))
        elif said := devices.note(self.config, len(gpus)):
            self.notes.append(said)

    def _crowded(self, gpus: list[Gpu], model_dir: Path | None) -> str | None:
        """Why learner and vLLM do not fit the GPU that they share, if they do not."""
        c = self.config
        if not devices.are_shared(c, len(gpus)) or model_dir is None or engine_of(c) != "vllm":
            return None
        fixed = (
            find_model(c.model.kl_reference, "model.kl_reference") if c.learner.kl and c.model.kl_reference else None
        )
        model = one_gpu.Model(
            parameters_of(model_dir),
            own=4 if c.model.dtype == "float32" else 2,
            reference=parameters_of(fixed) if fixed else 0,
            architecture=read_settings(model_dir / "config.json"),
        )
        return one_gpu.refusal(c, gpus, model)

    def _ports(self) -> None:
        wanted = plan.ports_of(self.config)
        for key, host, port in () if self.dry_run else wanted:
            if not ports.can_listen(host, port):
                raise UserError(
                    f"{key} = {port} is in use on this machine ({host}): stop what listens there, or choose another "
                    f"port, for example --{key} {ports.free_port()}."
                )

    def _disk(self, model_dir: Path | None) -> None:
        version, checkpoint = self._sizes(model_dir)
        kept = self.config.learner.keep_last + 1
        needed = self._more(self.config.weights_dir, VERSIONS_KEPT * version) + RUN_FOLDER_BYTES
        needed += self._more(self.config.checkpoints_dir, kept * checkpoint)
        what = f"{VERSIONS_KEPT} published versions of {_gib(version)} and {kept} checkpoints of {_gib(checkpoint)}"
        folder, received_in = _existing(self.config.run_dir), _existing(self.config.received_dir)
        if version and self.config.actor.count and self.config.weights.transport != "folder":
            received = f"{VERSIONS_RECEIVED} versions of {_gib(version)} that actors receive"
            more = self._more(self.config.received_dir, VERSIONS_RECEIVED * version)
            if folder.stat().st_dev == received_in.stat().st_dev:
                needed, what = needed + more, f"{what}, and {received}"
            else:
                _refuse_no_room(received_in, more, received, "weights.received")
        _refuse_no_room(folder, needed, what, "run.root")

    def _more(self, folder: Path, needed: int) -> int:
        """Of the bytes that come to lie in a folder, those that a run which goes on has not written there yet."""
        if not self.resuming:
            return needed
        return max(0, needed - sum(f.stat().st_size for f in folder.rglob("*") if f.is_file()))

    def _sizes(self, model_dir: Path | None) -> tuple[int, int]:
        """Bytes of a published version and of a checkpoint; adapters are small enough to be taken for nothing."""
        c = self.config
        if model_dir is None or c.learner.lora_rank:
            return 0, 0
        parameters = parameters_of(model_dir)
        own = 4 if trains_in_float32(c.model.dtype, c.learner.device) else 2
        written = {"model": own, "float32": 4, "bfloat16": 2}[c.weights.dtype]
        shards = c.learner.ranks > 1
        return parameters * written, checkpoints.size_of(parameters, own, c.learner.optimizer, shards=shards)

    def _redis_memory(self, model_dir: Path | None) -> None:
        limit, transport = self.config.redis.max_memory_bytes, self.config.weights.transport
        if transport != "redis":
            return
        version = self._sizes(model_dir)[0]
        if version > MUCH_TO_SEND:
            self.notes.append(
                f"weights.transport = 'redis': each machine with actors fetches {_gib(version)} a step from one "
                f"server, {version / NETWORK:.0f} s of a 10 Gbit/s network; 64 machines {_gib(64 * version)} and "
                f"{64 * version / NETWORK / 60:.0f} minutes. A shared folder, 'broadcast' or weights.delta spare it."
            )
        needed = VERSIONS_IN_REDIS * version
        if limit and needed > WEIGHTS_SHARE * limit:
            raise UserError(
                f"redis.max_memory_bytes = {limit} ({_gib(limit)}) has no room for the {VERSIONS_IN_REDIS} versions of "
                f"the weights ({_gib(needed)}) that travel through it: raise it, or set weights.transport to 'folder'."
            )

    def _data(self, key: str, source: str) -> PromptSource | None:
        if not source:
            raise UserError(f"{key} is empty: name a parquet file, a file of JSON lines, or a hub name.")
        if self.dry_run and not Path(source).exists():
            self.notes.append(f"{key} = '{source}' is not on this machine; it was not read.")
            return None
        return open_prompts(source, whole_rows=bool(self.config.reward.function))

    def _same_questions(self, sets: dict[str, PromptSource | None]) -> None:
        named = {"data.train": self.config.data.train, "data.eval": self.config.data.eval}
        found = {key: mark_of(named[key], len(prompts)) for key, prompts in sets.items() if prompts is not None}
        self.questions = {key: mark for key, mark in found.items() if mark is not None}
        before = kept(self.config.run_dir) if self.resuming else {}
        for key in before.keys() & self.questions.keys():
            if said := change(key, before[key], self.questions[key]):
                self.notes.append(said)

    def _own_reward(self, train: PromptSource | None) -> None:
        function = self.config.reward.function
        if function and not own.file_of(function).is_file():
            self._absent(UserError(f"reward.function = '{function}': there is no such file; check the path."))
        elif function and train is not None:
            own.try_out(function, train[0], self.config.reward.timeout_s)

    def _held_out(self) -> PromptSource | None:
        return self._data("data.eval", self.config.data.eval) if self.config.data.eval else None

    def _context(self, model_dir: Path) -> None:
        positions = positions_of(model_dir)
        if positions and self.config.rollout.max_tokens > positions:
            raise UserError(
                f"rollout.max_tokens = {self.config.rollout.max_tokens} exceeds the {positions} positions of the model "
                f"in {model_dir}: set rollout.max_tokens to {positions} or less."
            )
        heads = text_settings(read_settings(model_dir / "config.json")).get("num_attention_heads")
        parts = self.config.actor.tensor_parallel
        if isinstance(heads, int) and heads % parts:
            raise UserError(
                f"actor.tensor_parallel = {parts} does not divide the {heads} attention heads of the model in "
                f"{model_dir}: vLLM gives each GPU as many of them."
            )

    def _prompt_lengths(self, model_dir: Path, sets: dict[str, PromptSource | None]) -> None:
        limit = self.config.rollout.max_prompt_tokens
        try:
            tokens = PromptTokens(model_dir, self.config.env.prompt)
        except FileNotFoundError:
            self.notes.append(f"{model_dir} has no tokenizer.json, so prompt lengths were not checked.")
            return
        except ValueError as error:
            raise UserError(f"model.path: {error}.") from None
        for key, prompts in sets.items():
            longest = tokens.longest(prompts) if prompts is not None else None
            if longest and longest.tokens > limit:
                raise UserError(
                    f"{key}: the prompt of example {longest.index + 1} ('{shortened(longest.question)}') has "
                    f"{longest.tokens} tokens, and rollout.max_prompt_tokens is {limit}: raise it to {longest.tokens}, "
                    "or drop that example."
                )


def _existing(folder: Path) -> Path:
    folder = folder.absolute()
    while not folder.exists():
        folder = folder.parent
    return folder


def _refuse_no_room(folder: Path, needed: int, what: str, setting: str) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise UserError(
            f"{folder} has {_gib(free)} free, and the run needs about {_gib(needed)} ({what}): free some or set "
            f"{setting}."
        )


def _gib(size: float) -> str:
    return f"{size / 2**30:.2f} GiB"
