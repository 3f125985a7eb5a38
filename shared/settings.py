"""The sections of a run's configuration, with their defaults and meaning.

Every field is a setting somebody turns. Units are in the names: `_s` seconds, `_ms` milliseconds, `_bytes` bytes; token
counts say tokens. Settings that contradict each other are refused in `shared.config`, with the arithmetic shown.
"""

import re
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator


def _seconds(value: object) -> object:
    """Also as compose writes durations: 90s, 1m30s, 1h."""
    found = re.fullmatch(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s)?", value) if isinstance(value, str) else None
    return sum(n * float(part or 0) for n, part in zip((3600, 60, 1), found.groups(), strict=True)) if found else value


def _number_as_text(value: object) -> object:
    return f"{value:g}" if isinstance(value, int | float) and not isinstance(value, bool) else value


Delay = Annotated[str, BeforeValidator(_number_as_text)]
Duration = Annotated[float, BeforeValidator(_seconds)]


class Section(BaseModel):
    """A frozen group of settings that refuses unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


class Run(Section):
    """Identity and length of a run."""

    name: str = Field(default="run", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")  # folder, and keys in Redis
    root: str = "runs"  # the run lives in <root>/<name>
    steps: int = Field(default=100, ge=1, lt=2**31)  # training steps, each an update of the weights by one batch
    seed: int = Field(default=0, ge=0, lt=2**31)  # of the order of prompts, and of sampling
    stop_s: Duration = Field(default=5.0, ge=2)  # a service has from SIGTERM on before it is killed; 90 or "1m30s"
    pin_cores: Literal["off", "auto"] = "off"  # auto: `headrace up` keeps learner and actors to cores of their own
    metrics_host: str = "127.0.0.1"  # where actors and learner serve Prometheus metrics; 0.0.0.0 in containers
    gpus: Literal["auto", "lease", "share"] = "auto"  # lease: a process claims GPUs of its own; auto: where there are 2


class Model(Section):
    """The policy that is trained: a Hugging Face directory (or a name the local cache holds)."""

    path: str = ""  # a Hugging Face folder, or a name that the local cache holds; must be set
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"  # auto: bf16 on a GPU, fp32 on a CPU
    kl_reference: str = ""  # frozen model of the KL term; needed when learner.kl > 0


class Data(Section):
    """Prompts: verl / Search-R1 parquet, JSON lines, or a hub name."""

    train: str = ""  # JSON lines: question, golden_answers (or answer); or parquet as verl has it; must be set
    eval: str = ""  # held-out questions; empty: no evaluation
    shuffle: bool = True  # another order in each epoch; false: as in the file


class Env(Section):
    """What a rollout talks to between its turns."""

    kind: Literal["search", "single"] = "search"  # search: turns with a retriever between them; single: one answer
    url: str = "http://127.0.0.1:8000"  # of the retriever; unset: the one that `headrace up` starts over search.corpus
    prompt: str = "search_r1"  # search_r1 | math | qwen_math | plain, or a text holding {question}
    topk: int = Field(default=3, ge=1)  # passages that the model is shown of each search
    max_turns: int = Field(default=4, ge=1)  # turns with search; one more generation without follows
    max_observation_tokens: int = Field(default=500, ge=8)  # of the passages of one search, cut behind that
    timeout_s: float = Field(default=10.0, gt=0)  # of one call of the retriever
    retries: int = Field(default=4, ge=0)  # of a call that failed, before the rollout is left out
    latency: Delay = ""  # s added to each retrieval: 2.0, uniform(1, 3) or lognormal(1.5, 0.6): median, sigma


class Reward(Section):
    """How the sampled text is scored."""

    kind: Literal["em", "f1", "math"] = "em"  # em: equal to an answer; f1: its words; math: equal as mathematics
    function: str = ""  # "FILE.py:NAME": a function of your own scores instead; see docs/rewards.md
    timeout_s: float = Field(default=5.0, gt=0)  # of one call of reward.function; slower ones leave a rollout unscored
    format_score: bool = False  # graded: right 1 or .8, wrong .2 or .1, by form: the tags, in math the box
    overlong_tokens: int = Field(default=0, ge=0)  # fewer left before a length limit cost part of the penalty; 0: off
    overlong_penalty: float = Field(default=1.0, gt=0)  # taken from the reward where none are left


class Rollout(Section):
    """Budgets and sampling of one group."""

    group_size: int = Field(default=8, ge=2)  # G
    temperature: float = Field(default=1.0, gt=0, lt=100)  # of sampling; the learner divides its logits by the same
    top_p: float = 1.0  # 1: off, which training needs
    top_k: int = 0  # 0: off
    max_prompt_tokens: int = Field(default=2048, ge=1)  # of a prompt; a longer one is refused before the run
    max_turn_tokens: int = Field(default=500, ge=1)  # sampled in one turn
    max_tokens: int = Field(default=4096, ge=2)  # prompt, sampled and retrieved together
    deadline_s: float = Field(default=120.0, gt=0)  # of one group; what has finished by then is kept


class Eval(Section):
    """Evaluation on held-out questions while training."""

    every: int = Field(default=0, ge=0)  # steps; 0: only before the first and after the last
    samples: int = Field(default=1, ge=1, le=65_536)  # of each question
    temperature: float = Field(default=0.0, ge=0, lt=100)  # 0: greedy, or of several samples rollout.temperature
    limit: int = Field(default=0, ge=0, lt=2**31)  # questions; 0: all


class Actor(Section):
    """An actor process."""

    count: int = Field(default=1, ge=0)  # how many `headrace up` starts on this machine
    engine: Literal["auto", "vllm", "torch"] = "auto"  # auto: vllm where it is installed
    groups: int = Field(default=8, ge=1)  # rolled out at once by one actor: times rollout.group_size requests in flight
    threads: int = Field(default=0, ge=0)  # CPU threads of the engine; 0: its share of the cores
    kv_cache_bytes: int = Field(default=0, ge=0)  # 0: derived from groups, group_size and max_tokens
    gpu_memory_utilization: float = Field(default=0.85, gt=0, le=1)  # vLLM: share of a GPU for weights and cache
    tensor_parallel: int = Field(default=1, ge=1)  # vLLM: GPUs of one actor
    enforce_eager: bool = False  # vLLM on a GPU: true compiles and captures no graphs, a faster start and a slower run
    exact: bool = False  # torch engine: one request at a time, so that no bit depends on what else is generated; slow
    heartbeat_s: float = Field(default=2.0, gt=0, le=8)  # between two reports to Redis, which holds one for 10 s
    canary_tolerance: float = Field(default=0.0, ge=0)  # nats in the mean over its tokens; 0: 1e-4 in fp32, .12 in bf16
    port: int = Field(default=0, ge=0, le=65535)  # metrics; 0: any free port


class Replay(Section):
    """Selection, admission and the buffer."""

    policy: str = "headroom_drift"  # a module of services/replay/policies
    select: int = Field(default=0, ge=0)  # r: replayed groups of a step, at most; 0: half of learner.batch
    tau: float = Field(default=1e-2, ge=0)  # largest Drift (how far the policy has moved on a group) that is replayed
    drift: Literal["l2", "l1"] = "l2"  # mean d^2 or mean |d|; tau is in the same measure
    headroom: Literal["sign", "advantage"] = "sign"  # of the advantage only its sign, or weighted by |A|
    adaptive_tau: float = Field(default=0.0, ge=0, le=3)  # decades around tau in which it follows the run; 0: fixed
    counterfactual: bool = False  # also measure, while fresh groups are awaited, what `naive` would have replayed
    capacity: int = Field(default=512, ge=0)  # most groups stored for replay; useful are 2 to 4 times learner.batch
    unit: int = Field(default=1, ge=1)  # a step replays a multiple of it; learner.mini_batch: whole mini-batches
    max_lag: int = Field(default=0, ge=0)  # versions; 0: synchronous, as the paper; 1: overlapped
    scan_chunk: int = Field(default=16, ge=1)  # groups per scan request
    max_attempts: int = Field(default=3, ge=1)  # of one task, before it is counted as lost
    max_refill_rounds: int = Field(default=10, ge=1)  # policy dapo: most batches' worth of groups dropped in a step
    ask_again_every: int = Field(default=5, ge=1)  # steps; policy bapo: between rounds of prompts asked again
    free_refresh: bool = False  # a trained replay group takes its scores from the training forward, not from its scan
    max_bytes: int = Field(default=4 * 2**30, ge=2**20)  # of groups in Redis; above it only the next step's tasks
    host: str = "127.0.0.1"  # where the page and /metrics are served; 0.0.0.0 in containers
    public_name: str = ""  # a name with a dot under which a browser may ask, besides addresses and names without one
    port: int = Field(default=8001, ge=0, le=65535)  # of the page and /metrics; 0: any free port


# What a loss takes where the configuration does not say otherwise; the numbers are those of its paper (docs/method.md).
PUBLISHED: dict[str, dict[str, float | str]] = {
    "dapo": {"clip_low": 0.2, "clip_high": 0.28},
    "dr_grpo": {"advantage": "mean"},
    "gspo": {"clip_low": 3e-4, "clip_high": 4e-4},
    "cispo": {"clip_low": 1.0, "clip_high": 4.0},
}

# The same of the policies whose papers change the loss, where it is grpo.
PUBLISHED_WITH: dict[str, dict[str, float]] = {
    "bapo": {"clip_low": 0.2, "clip_high": 0.28, "tis_cap": 3.0},
    "exgrpo": {"replay_shaping": 0.1},
    "rollout_advantage": {"clip_low": 0.2, "clip_high": 0.28, "dual_clip": 10.0},
}


class Learner(Section):
    """The optimiser and its loop."""

    batch: int = Field(default=128, ge=1)  # b: fresh groups of a step
    mini_batch: int = Field(default=0, ge=0)  # groups per optimiser step; 0: the whole batch in one
    micro_tokens: int = Field(default=16384, ge=64)  # tokens per forward
    packed: bool = True  # rollouts one after another; false, or where a model cannot: padded to the longest
    recompute: bool = False  # activations are made again in the backward pass: far less memory, a third more time
    loss: Literal["grpo", "dapo", "dr_grpo", "gspo", "cispo"] = "grpo"  # what is minimised; see docs/method.md
    advantage: Literal["std", "mean"] = "std"  # r - mean r, over the group's std or as it is; dr_grpo: "mean"
    clip_low: float = Field(default=0.2, gt=0, le=1)  # unset: gspo 3e-4, cispo 1, which is no bound below
    clip_high: float = Field(default=0.2, gt=0)  # unset: dapo .28, gspo 4e-4, cispo 4; bapo, rollout_advantage .28
    dual_clip: float = Field(default=0.0, ge=0)  # most a ratio counts where A < 0; 0: no limit; rollout_advantage 10
    denominator_tokens: int = Field(default=0, ge=0)  # dr_grpo's constant; 0: rollout.max_tokens
    proximal_cap: float = Field(default=0.0, ge=0)  # decoupled clipping, truncation of exp(l_start - l_ref); 0: off
    replay_shaping: float = Field(
        default=0.0, ge=0
    )  # c: replayed count ratio / (ratio + c), no clip; 0: off; exgrpo .1
    kl: float = Field(default=0.0, ge=0)  # coefficient of the k3 KL term to model.kl_reference
    tis_cap: float = Field(default=2.0, ge=0)  # truncation of exp(l_ref - l_gen); 0: no such weight; unset: bapo 3
    reference: Literal["trainer", "engine"] = "trainer"  # whose log-probability is l_ref
    lr: float = Field(default=1e-6, gt=0)  # learning rate of AdamW, after the warm-up
    schedule: Literal["constant", "linear", "cosine"] = "constant"  # of the learning rate, to 0 at run.steps
    warmup_steps: int = Field(default=0, ge=0)  # in which the learning rate rises from 0
    weight_decay: float = Field(default=0.0, ge=0)  # of matrices; vectors have none
    beta1: float = Field(default=0.9, ge=0, lt=1)  # AdamW: decay of the mean gradient
    beta2: float = Field(default=0.999, ge=0, lt=1)  # AdamW: decay of the mean squared gradient
    grad_clip: float = Field(default=1.0, gt=0)  # largest norm of the gradient
    max_bad_gradients: int = Field(default=5, ge=0)  # not finite, left out, in a row; one more ends it
    optimizer: Literal["adamw", "adamw8bit"] = "adamw"  # adamw8bit: moments in 8 bits, with bitsandbytes
    offload: bool = False  # optimiser state and float32 weights in the processor's memory: a slower step, a smaller GPU
    lora_rank: int = Field(default=0, ge=0, le=512)  # train LoRA adapters of this rank alone; 0: all weights
    lora_alpha: int = Field(default=0, ge=0)  # adapters count lora_alpha / lora_rank; 0: twice the rank
    lora_targets: str = "all"  # which linear layers have adapters: all, or names as in "q_proj,v_proj"
    device: Literal["auto", "cpu", "cuda"] = "auto"  # auto: a GPU where there is one
    ranks: int = Field(default=1, ge=1)  # processes that hold one model between them (FSDP), each with a GPU of its own
    threads: int = Field(default=0, ge=0)  # CPU threads; 0: its share of the cores
    cache_bytes: int = Field(default=256 * 2**20, ge=0)  # at most, of groups in memory that may be asked for again
    checkpoint_every: int = Field(default=10, ge=1)  # steps
    keep_last: int = Field(default=2, ge=1)  # newest checkpoints that stay on disk; older ones are deleted
    keep_every: int = Field(default=0, ge=0)  # steps; checkpoints at its multiples are kept for good
    port: int = Field(default=0, ge=0, le=65535)  # metrics; 0: any free port

    @model_validator(mode="before")
    @classmethod
    def _as_published(cls, given: object) -> object:
        """What the loss's paper says, where nothing else is set: the resolved configuration shows it."""
        return PUBLISHED.get(str(given.get("loss")), {}) | given if isinstance(given, dict) else given


class Weights(Section):
    """How a version travels from the learner to the actors."""

    dir: str = ""  # empty: <run>/weights
    transport: Literal["folder", "redis", "broadcast"] = "folder"  # actors read weights.dir; the others need not see it
    received: str = ""  # not folder: where an actor puts what it receives; empty: <run>/received
    address: str = ""  # transport broadcast: where actors reach the learner; empty: as it reaches Redis
    delta: bool = False  # transport redis: also offer what has changed since the version before, compressed
    dtype: Literal["model", "float32", "bfloat16"] = "model"  # of the files; model: as the learner computes
    canary_sequences: int = Field(default=2, ge=0)  # whose log-probabilities prove each swap; 0: none
    canary_tokens: int = Field(default=64, ge=1)  # of each canary sequence, at most
    swap_timeout_s: float = Field(default=60.0, gt=0)  # before an actor whose swap hangs ends itself


class Redis(Section):
    """Where the streams are. Empty url: `headrace up` starts a server of its own."""

    url: str = ""  # redis://:PASSWORD@HOST:PORT/0; empty: a server of its own
    wait_s: float = Field(default=60.0, gt=0)  # how long a service waits for it at its start; later, for ever
    max_memory_bytes: int = Field(default=0, ge=0)  # of the server `headrace up` starts; 0: no limit


class Search(Section):
    """The retrieval service."""

    backend: Literal["bm25", "dense"] = "bm25"  # bm25: words; dense: sentence embeddings
    corpus: str = ""  # JSON lines with "contents"; empty: no retriever is started here
    index: str = ""  # empty: <run>/index, built at the first start
    host: str = "127.0.0.1"  # where the retriever listens; 0.0.0.0 in containers
    port: int = Field(default=8000, ge=0, le=65535)  # of the retriever; 0: any free port
    topk: int = Field(default=3, ge=1)  # passages of a query that does not say how many
    max_topk: int = Field(default=50, ge=1)  # the most that a query may ask for
    max_queries: int = Field(default=512, ge=1)  # of one request
    max_query_chars: int = Field(default=2000, ge=1)  # longer ones are refused
    cache_entries: int = Field(default=10_000, ge=0)  # answers kept in memory
    batch_window_ms: float = Field(default=2.0, ge=0)  # how long a query waits for others to be searched with
    max_batch: int = Field(default=256, ge=1)  # queries searched at once
    encoder: str = ""  # dense: a sentence-transformers folder or hub name
    query_prefix: str = "query: "  # dense: put before each query (e5)
    passage_prefix: str = "passage: "  # dense: put before each passage (e5)
    stemmer: Literal["english", "none"] = "english"  # bm25: of words
    k1: float = Field(default=0.9, ge=0, allow_inf_nan=False)  # bm25: term saturation
    b: float = Field(default=0.4, ge=0, le=1)  # bm25: length weight
