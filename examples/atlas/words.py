"""Every word that any Atlas world may use.

The pools are fixed, so that all worlds share one vocabulary and a policy that was warm-started on some worlds can read
any other. Which name belongs to what, and every fact, differs from world to world (`world.py`).
"""

import random


def _listed(text: str) -> list[str]:
    return text.split()


_ONSETS = _listed("b br d dr f g gr h k kl l m n p r s sk t tr v z")
_VOWELS = _listed("a e i o u")
_CODAS = _listed("l n r s th m x nd")


def invent(seed: int, count: int, ending: str, taken: set[str]) -> list[str]:
    """`count` pronounceable lower-case words with a common ending, none of them in `taken` (which grows)."""
    rng = random.Random(seed)
    words: list[str] = []
    while len(words) < count:
        word = rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_CODAS) + rng.choice(_VOWELS) + ending
        if word not in taken:
            taken.add(word)
            words.append(word)
    return words


_taken: set[str] = set()
FIRST_NAMES = invent(1, 64, "", _taken)
LAST_NAMES = invent(2, 64, "k", _taken)
TOWN_NAMES = invent(3, 90, "ra", _taken)
GUILD_NAMES = invent(4, 36, "sh", _taken)
RIVER_NAMES = invent(5, 24, "we", _taken)

TOWN_PREFIXES = _listed("upper lower old new great little")
THING_KINDS = _listed("lantern crown harp mirror sword goblet drum mask bell chest ladder kettle")
THING_LOOKS = _listed("crooked hollow quiet heavy narrow golden broken painted sleeping winter lucky stolen")
GUILD_KINDS = _listed("circle league choir brotherhood council company")
GOODS = _listed("salt honey glass wool cheese candles ropes cider paper tiles figs soap")
CRAFTS = _listed("weaver baker mason tailor fisher miller potter scribe smith farmer sailor healer")
STUFFS = _listed("oak jade bone amber marble copper ivory slate cedar pearl walnut horn")
BEASTS = _listed("heron wolf badger stag raven otter bear falcon boar hare lynx swan")
