"""Written-out episodes for the warm start: clean ones that teach the skill, noisy ones that leave room for GRPO.

An episode is a list of segments, text with a flag "the policy writes this". A clean trace searches for the right
thing, copies the right fact and always takes the second hop. A noisy trace makes each of these choices wrongly with a
fixed chance, and states faithfully what it chose: the model that imitates it knows how to search and copy, and has bad
habits about what to search and copy.
"""

import random
from dataclasses import dataclass

from examples.atlas import grammar
from examples.atlas.tokenizer import ASSISTANT, END, USER
from examples.atlas.world import Entity, Fact, Question, World, one_hop
from examples.small_policy.tokenizer import Segments


@dataclass(frozen=True)
class Habits:
    """Chances of the right choice at each point of a trace; `confused` maps a relation to the one read in its place."""

    first_search: float = 1.0
    read: float = 1.0
    read_midway: float = 1.0
    second_hop: float = 1.0
    second_search: float = 1.0
    read_confused: float = 1.0
    confused: tuple[tuple[str, str], ...] = ()


CLEAN = Habits()
NOISY = Habits(
    first_search=0.85,
    read=0.6,
    read_midway=0.75,
    second_hop=0.42,
    second_search=0.75,
    read_confused=0.3,
    confused=(
        ("founder", "ruler"),
        ("owner", "maker"),
        ("guild", "teacher"),
        ("banner", "leader"),
        ("grain", "river"),
    ),
)


def _document(world: World, name: str) -> tuple[str, bool]:
    return grammar.information([(name, world.bodies[name])]), False


def _read(world: World, fact: Fact, shown: str, right: float, habits: Habits, rng: random.Random) -> Fact:
    """The fact that the trace takes from the passage of `shown` although it wants `fact`."""
    options = world.facts_of(shown)
    wanted = [f for f in options if f.relation is fact.relation]
    twin = dict(habits.confused).get(fact.relation.name)
    if wanted and rng.random() < (habits.read_confused if twin else right):
        return wanted[0]
    twins = [f for f in options if f.relation.name == twin]
    if twins and rng.random() < 0.8:
        return twins[0]
    return rng.choice([f for f in options if f.relation is not fact.relation])


def episode(question: Question, world: World, habits: Habits, rng: random.Random) -> tuple[Segments, list[str]]:
    """The segments of one episode after its prompt, and the names of the passages it has shown."""
    first, last = question.facts[0], question.facts[-1]
    target = first.subject
    if rng.random() >= habits.first_search:
        same_kind = [e for e in world.entities.values() if e.kind == target.kind]
        target = rng.choice(same_kind)
    segments: Segments = [(f"<think> first, {_search(target, first)}", True), _document(world, target.name)]
    shown = [target.name]
    goes_on = question.hops == 2 and rng.random() < habits.second_hop
    right = habits.read_midway if question.hops == 2 else habits.read
    found = _read(world, first, shown[-1], right, habits, rng)
    if goes_on and found.object in world.entities:
        target = world.entities[found.object]
        if rng.random() >= habits.second_search:
            target = rng.choice([first.subject, world.entities[world.distractors[shown[-1]]]])
        segments += [
            (f"<think> {_state(found)}, next {_search(target, last)}", True),
            _document(world, target.name),
        ]
        shown.append(target.name)
        found = _read(world, last, target.name, habits.read, habits, rng)
    segments.append((_conclude(found), True))
    return segments, shown


def _state(fact: Fact) -> str:
    return f"{fact.relation.marker} {fact.object}"


def _search(target: Entity, fact: Fact) -> str:
    query = f"{target.name} {fact.relation.marker}"
    return f"{query} </think> <search> {query} </search>"


def _conclude(fact: Fact) -> str:
    return f"<think> {_state(fact)} </think> <answer> {fact.object} </answer>{END}"


def trace(question: Question, world: World, habits: Habits, extra: int, rng: random.Random) -> Segments:
    """Prompt, episode and `extra` further questions about the passages shown, answered at once.

    The further questions make copying, which is what takes long to learn, a larger part of every sequence. One trace in
    thirty begins with a turn that ends without an action and is answered by the hint.
    """
    segments: Segments = [(f"{USER}{question.text}{END}{ASSISTANT}", False)]
    if rng.random() < 1 / 30:
        lost = rng.choice(["<think> first,", "<think> I need", "<answer><search>", "<think> first, </think>"])
        segments.append((f"{lost}{END}{grammar.HINT}", False))
    body, shown = episode(question, world, habits, rng)
    segments += body
    for _ in range(extra):
        fact = rng.choice(world.facts_of(rng.choice(shown)))
        segments.append((f"{USER}{one_hop(fact, rng).text}{END}{ASSISTANT}", False))
        segments.append((_conclude(fact), True))
    return segments
