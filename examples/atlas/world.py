"""The generated world: entities, facts, passages and questions. Pure: the same seed and sizes give the same bytes.

A world has towns, people, things and guilds. Every entity has one passage that states all its facts and one sentence
that only distracts. A one-hop question asks for a fact; a two-hop question names its subject by another fact ("Who
rules the town where Belno Sarok was born?").

The split is by FACT: a share of the facts is held out, a held-out question uses held-out facts only (both of them, with
two hops), a training question none. So nothing that is asked in the test was asked in training, not even in part.
"""

import argparse
import json
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from examples.atlas import words


@dataclass(frozen=True)
class Relation:
    """What can be known about a subject, and how passages and questions say it.

    `sentence` ends with the object, right after the words of `marker`; `phrase` names the object by its subject
    ("the ruler of {s}") and is empty where the object is no entity.
    """

    name: str
    subject: str
    object: str
    marker: str
    sentence: str
    questions: tuple[str, str]
    phrase: str = ""


RELATIONS = (
    Relation("ruler", "town", "person", "ruled by", "{s} is ruled by {o}.",
             ("Who rules {s}?", "Who is the ruler of {s}?"), "the ruler of {s}"),
    Relation("founder", "town", "guild", "founded by the", "{s} was founded by the {o}.",
             ("Which guild founded {s}?", "Who founded {s}?"), "the founder of {s}"),
    Relation("river", "town", "river", "the river", "{s} stands on the river {o}.",
             ("On which river does {s} stand?", "Which river runs by {s}?")),
    Relation("goods", "town", "goods", "known for", "{s} is known for {o}.",
             ("What is {s} known for?", "Which goods come from {s}?")),
    Relation("grain", "town", "town", "grain from", "{s} buys grain from {o}.",
             ("From where does {s} buy grain?", "Which town sells grain to {s}?"), "the town that sells grain to {s}"),
    Relation("birthplace", "person", "town", "born in", "{s} was born in {o}.",
             ("Where was {s} born?", "In which town was {s} born?"), "the town where {s} was born"),
    Relation("craft", "person", "craft", "works as a", "{s} works as a {o}.",
             ("What does {s} work as?", "What is the craft of {s}?")),
    Relation("teacher", "person", "person", "taught by", "{s} was taught by {o}.",
             ("Who taught {s}?", "Who is the teacher of {s}?"), "the teacher of {s}"),
    Relation("guild", "person", "guild", "member of the", "{s} is a member of the {o}.",
             ("Which guild is {s} a member of?", "Of which guild is {s} a member?"), "the guild of {s}"),
    Relation("maker", "thing", "person", "made by", "{s} was made by {o}.",
             ("Who made {s}?", "Who is the maker of {s}?"), "the maker of {s}"),
    Relation("place", "thing", "town", "kept in", "{s} is kept in {o}.",
             ("Where is {s} kept?", "In which town is {s} kept?"), "the town where {s} is kept"),
    Relation("stuff", "thing", "stuff", "carved from", "{s} is carved from {o}.",
             ("What is {s} carved from?", "From which stuff is {s} carved?")),
    Relation("owner", "thing", "guild", "belongs to the", "{s} belongs to the {o}.",
             ("Which guild owns {s}?", "To which guild does {s} belong?"), "the guild that owns {s}"),
    Relation("leader", "guild", "person", "led by", "{s} is led by {o}.",
             ("Who leads {s}?", "Who is the leader of {s}?"), "the leader of {s}"),
    Relation("seat", "guild", "town", "meets in", "{s} meets in {o}.",
             ("Where does {s} meet?", "In which town does {s} meet?"), "the town where {s} meets"),
    Relation("banner", "guild", "beast", "shows a", "{s} has a banner that shows a {o}.",
             ("What is on the banner of {s}?", "Which beast is on the banner of {s}?")),
)  # fmt: skip

DISTRACTORS = {
    "town": ("{s} was once robbed of the {thing}.", "thing"),
    "person": ("{s} once passed through {town}.", "town"),
    "thing": ("{s} was once lost near {town}.", "town"),
    "guild": ("{s} once lost the {thing}.", "thing"),
}
PRONOUNS = {"town": ("It",), "person": ("He", "She"), "thing": ("It",), "guild": ("It",)}
VALUES = {
    "river": [name.title() for name in words.RIVER_NAMES],
    "goods": words.GOODS,
    "craft": words.CRAFTS,
    "stuff": words.STUFFS,
    "beast": words.BEASTS,
}


@dataclass(frozen=True)
class Entity:
    """Something with a passage of its own. `name` is its title, `kind` one of town, person, thing, guild."""

    name: str
    kind: str

    @property
    def mention(self) -> str:
        """The name as it stands inside a sentence."""
        return f"the {self.name}" if self.kind in ("thing", "guild") else self.name


@dataclass(frozen=True)
class Fact:
    """`object` is the name of an entity, or a plain value where the relation's object is none."""

    subject: Entity
    relation: Relation
    object: str


@dataclass(frozen=True)
class Question:
    """One question; `facts` holds the one or two facts it rests on, in the order in which they must be found."""

    text: str
    answer: str
    facts: tuple[Fact, ...]

    @property
    def hops(self) -> int:
        return len(self.facts)


@dataclass(frozen=True)
class Sizes:
    """How many entities of each kind. The name pools allow 90 towns, 600 people, 140 things and 36 guilds."""

    towns: int = 88
    people: int = 190
    things: int = 60
    guilds: int = 36


@dataclass(frozen=True)
class World:
    """A finished world. `bodies` maps an entity's name to the text of its passage, without the title."""

    entities: dict[str, Entity]
    facts: dict[tuple[str, str], Fact]
    bodies: dict[str, str]
    distractors: dict[str, str]

    def facts_of(self, name: str) -> list[Fact]:
        return [self.facts[name, r.name] for r in RELATIONS if (name, r.name) in self.facts]


def _names(sizes: Sizes, rng: random.Random) -> list[Entity]:
    """Names of one to three words, of which none begins another."""
    found: dict[str, Entity] = {}

    def add(count: int, kind: str, draw: Callable[[], list[str]]) -> None:
        goal = len(found) + count
        while len(found) < goal:
            parts = [part.title() for part in draw()]
            found.setdefault(" ".join(parts[:2]), Entity(" ".join(parts), kind))

    towns, guilds = rng.sample(words.TOWN_NAMES, sizes.towns), rng.sample(words.GUILD_NAMES, sizes.guilds)
    pick = rng.choice
    add(
        sizes.towns,
        "town",
        lambda: ([pick(words.TOWN_PREFIXES)] if rng.random() < 0.3 else []) + [towns.pop()],
    )
    add(sizes.people, "person", lambda: [pick(words.FIRST_NAMES), pick(words.LAST_NAMES)]
        + ([pick(words.LAST_NAMES)] if rng.random() < 0.15 else []))  # fmt: skip
    add(sizes.things, "thing", lambda: [pick(words.THING_LOOKS), pick(words.THING_KINDS)])
    add(sizes.guilds, "guild", lambda: [guilds.pop(), pick(words.GUILD_KINDS)])
    return list(found.values())


def build_world(seed: int, sizes: Sizes | None = None) -> World:
    """Draw names, facts and passages. An object never is the subject itself."""
    rng = random.Random(seed)
    entities = _names(sizes or Sizes(), rng)
    by_kind: dict[str, list[str]] = {}
    for entity in entities:
        by_kind.setdefault(entity.kind, []).append(entity.name)
    facts: dict[tuple[str, str], Fact] = {}
    bodies: dict[str, str] = {}
    distractors: dict[str, str] = {}
    for entity in entities:
        own = []
        for relation in RELATIONS:
            if relation.subject == entity.kind:
                pool = VALUES.get(relation.object) or by_kind[relation.object]
                choice = rng.choice([o for o in pool if o != entity.name])
                own.append(Fact(entity, relation, choice))
                facts[entity.name, relation.name] = own[-1]
        template, kind = DISTRACTORS[entity.kind]
        distractors[entity.name] = rng.choice([o for o in by_kind[kind] if o != entity.name])
        bodies[entity.name] = _body(entity, own, template.replace("{" + kind + "}", distractors[entity.name]), rng)
    return World({e.name: e for e in entities}, facts, bodies, distractors)


def _body(entity: Entity, facts: list[Fact], distractor: str, rng: random.Random) -> str:
    """The sentences in a drawn order. The first and the distractor use the name, the others a pronoun."""
    sentences = [f.relation.sentence.replace("{o}", f.object) for f in facts]
    rng.shuffle(sentences)
    sentences.insert(rng.randrange(1, len(sentences) + 1), distractor)
    pronoun = rng.choice(PRONOUNS[entity.kind])
    named = [
        s.replace("{s}", entity.mention if i == 0 or s is distractor else pronoun) for i, s in enumerate(sentences)
    ]
    return " ".join(s[0].upper() + s[1:] for s in named)


def passages(world: World) -> list[dict[str, str]]:
    """The corpus in Search-R1's form, one line per entity."""
    return [{"id": str(i), "contents": f'"{name}"\n{body}'} for i, (name, body) in enumerate(world.bodies.items())]


def one_hop(fact: Fact, rng: random.Random) -> Question:
    return Question(_capital(rng.choice(fact.relation.questions), fact.subject.mention), fact.object, (fact,))


def two_hop(first: Fact, second: Fact, rng: random.Random) -> Question:
    inner = first.relation.phrase.replace("{s}", first.subject.mention)
    return Question(_capital(rng.choice(second.relation.questions), inner), second.object, (first, second))


def _capital(template: str, subject: str) -> str:
    text = template.replace("{s}", subject)
    return text[0].upper() + text[1:]


def chains(world: World) -> list[tuple[Fact, Fact]]:
    """All pairs of facts that make a two-hop question whose answer is neither of the entities on the way."""
    return [
        (first, second)
        for first in world.facts.values()
        if first.relation.phrase
        for second in world.facts_of(first.object)
        if second.object not in (first.subject.name, first.object)
    ]


def questions(
    world: World,
    seed: int,
    train: int = 2000,
    heldout: int = 400,
    held_share: float = 0.33,
    two_hop_share: float = 0.5,
) -> tuple[list[Question], list[Question]]:
    """Training and held-out questions, shuffled. Raises ValueError when the world is too small for the counts."""
    rng = random.Random(seed)
    keys = sorted(world.facts)
    rng.shuffle(keys)
    held = set(keys[: round(held_share * len(keys))])

    def draw(count: int, inside: bool) -> list[Question]:
        def usable(facts: Iterable[Fact]) -> bool:
            return all(((f.subject.name, f.relation.name) in held) == inside for f in facts)

        ones = [f for f in world.facts.values() if usable([f])]
        twos = [pair for pair in chains(world) if usable(pair)]
        want_two = round(count * two_hop_share)
        if len(ones) < count - want_two or len(twos) < want_two:
            raise ValueError(
                f"the world allows {len(ones)} one-hop and {len(twos)} two-hop questions of this split, not "
                f"{count - want_two} and {want_two}: ask for fewer, or for more entities"
            )
        drawn = [one_hop(f, rng) for f in rng.sample(ones, count - want_two)]
        drawn += [two_hop(a, b, rng) for a, b in rng.sample(twos, want_two)]
        rng.shuffle(drawn)
        return drawn

    return draw(train, inside=False), draw(heldout, inside=True)


def question_lines(drawn: list[Question], prefix: str) -> list[dict[str, object]]:
    return [
        {
            "id": f"{prefix}-{i}",
            "question": q.text,
            "golden_answers": [q.answer],
            "hops": q.hops,
            "data_source": f"atlas-{q.hops}hop",
        }
        for i, q in enumerate(drawn)
    ]


SEED = 7


def render(seed: int = SEED, sizes: Sizes | None = None, train: int = 2000, heldout: int = 400) -> dict[str, str]:
    """File name -> content of the three data files."""
    world = build_world(seed, sizes)
    trained, held = questions(world, seed, train, heldout)
    tables = {
        "corpus.jsonl": passages(world),
        "train.jsonl": question_lines(trained, "train"),
        "heldout.jsonl": question_lines(held, "heldout"),
    }
    return {name: "".join(json.dumps(row) + "\n" for row in rows) for name, rows in tables.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description="Write a generated world: corpus.jsonl, train.jsonl, heldout.jsonl.")
    parser.add_argument("out", type=Path, help="folder to write to, made if missing")
    parser.add_argument("--seed", type=int, default=SEED, help="another seed is another world with the same words")
    for kind, size in vars(Sizes()).items():
        parser.add_argument(f"--{kind}", type=int, default=size, help=f"number of {kind} (default {size})")
    parser.add_argument("--train", type=int, default=2000, help="training questions, half with two hops")
    parser.add_argument("--heldout", type=int, default=400, help="held-out questions, half with two hops")
    args = parser.parse_args()
    sizes = Sizes(args.towns, args.people, args.things, args.guilds)
    args.out.mkdir(parents=True, exist_ok=True)
    for name, content in render(args.seed, sizes, args.train, args.heldout).items():
        (args.out / name).write_text(content, encoding="utf-8")
        print(f"{args.out / name}: {content.count(chr(10))} lines")


if __name__ == "__main__":
    main()
