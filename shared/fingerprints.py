"""What makes a stored group incomparable with today's configuration when it changes (docs/method.md, section 6).

    tokenizer   the tokenizer's files
    template    the chat template, the environment's prompt and limits, the sampling temperature
    reward      the reward's settings, and what is made of it: the form of advantages and of Headroom
    index       what the retrieval service says of its index

A stored group whose fingerprints differ is dropped: its tokens, rewards or passages mean something else now.
"""

import hashlib
from pathlib import Path
from typing import Any

from shared.config import Config
from shared.rewards import fingerprint as reward_fingerprint
from shared.rewards import own
from shared.settings import Reward

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "merges.txt", "added_tokens.json", "vocab.txt")
_TEMPLATE_FILES = ("chat_template.jinja", "tokenizer_config.json")


def digest(*parts: bytes | str) -> str:
    """Sixteen hex digits."""
    hasher = hashlib.blake2b(digest_size=8)
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        hasher.update(len(data).to_bytes(8, "little") + data)
    return hasher.hexdigest()


def fingerprints(config: Config, model_dir: Path) -> dict[str, str]:
    """Those of groups made under this configuration, by the files as they are now; all but `index`, which the retrieval
    service says.
    """
    c = config
    rules = f"{c.env.kind}|{c.env.prompt}|{c.env.max_turns}|{c.env.topk}|{c.env.max_observation_tokens}"
    rules += f"|{c.rollout.temperature}"  # log-probabilities of another temperature cannot be compared
    return {
        "tokenizer": digest(*_contents(model_dir, _TOKENIZER_FILES)),
        "template": digest(rules, *_contents(model_dir, _TEMPLATE_FILES)),
        "reward": reward_fingerprint(**_reward(c.reward), advantage=c.learner.advantage, headroom=c.replay.headroom),
    }


def _reward(settings: Reward) -> dict[str, Any]:
    """What a reward depends on: of a function of one's own the text of its file, wherever that lies."""
    dumped = settings.model_dump(exclude={"function", "timeout_s"})
    return dumped | ({"function": own.fingerprint_of(settings.function)} if settings.function else {})


def _contents(directory: Path, names: tuple[str, ...]) -> list[bytes]:
    return [(directory / name).read_bytes() for name in names if (directory / name).is_file()]
