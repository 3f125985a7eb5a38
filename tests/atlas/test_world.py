"""The generated world: reproducible, answerable by the retriever, and split without leaks."""

import json
import random
from pathlib import Path

import pytest

from examples.atlas import world
from examples.atlas.rollout import bm25_retriever

DATA = Path(world.__file__).parent / "data"


@pytest.fixture(scope="module")
def made() -> world.World:
    return world.build_world(world.SEED)


def test_committed_data_is_what_the_generator_writes():
    for name, content in world.render().items():
        assert (DATA / name).read_text(encoding="utf-8") == content


def test_same_seed_gives_same_bytes_and_another_seed_other_facts():
    assert world.render(3) == world.render(3)
    assert world.render(3)["corpus.jsonl"] != world.render(4)["corpus.jsonl"]


def test_any_size_can_be_made():
    small = world.build_world(5, world.Sizes(towns=10, people=20, things=5, guilds=4))
    assert len(small.bodies) == len(world.passages(small)) == 39
    large = world.build_world(5, world.Sizes(towns=90, people=600, things=140, guilds=36))
    assert len(large.bodies) == 866


def test_too_many_questions_are_refused_with_the_counts():
    with pytest.raises(ValueError, match=r"allows \d+ one-hop and \d+ two-hop"):
        world.questions(world.build_world(5, world.Sizes(towns=10, people=20, things=5, guilds=4)), 5)


def test_passages_are_unique_and_state_every_fact(made: world.World):
    contents = [p["contents"] for p in world.passages(made)]
    assert len(set(contents)) == len(contents) == len({p["id"] for p in world.passages(made)})
    for fact in made.facts.values():
        body = made.bodies[fact.subject.name]
        assert f"{fact.relation.marker} {fact.object}." in body
        assert len(body.split()) <= 50


@pytest.mark.parametrize("form", ["query of the policy", "question", "question about the object"])
def test_bm25_finds_the_right_passage_first(made: world.World, form: str):
    search = bm25_retriever(list(made.bodies), list(made.bodies.values()))
    facts = list(made.facts.values())
    if form == "query of the policy":
        queries = [f"{f.subject.name} {f.relation.marker}".lower() for f in facts]
    else:
        template = 0 if form == "question" else 1
        queries = [f.relation.questions[template].replace("{s}", f.subject.mention) for f in facts]
    hits = [title == fact.subject.name for (title, _), fact in zip(search(queries), facts, strict=True)]
    assert sum(hits) / len(hits) > 0.98


def test_splits_are_disjoint_down_to_the_component_facts(made: world.World):
    trained, held = world.questions(made, world.SEED)

    def components(drawn: list[world.Question]) -> set[tuple[str, str]]:
        return {(f.subject.name, f.relation.name) for q in drawn for f in q.facts}

    assert not components(trained) & components(held)
    assert not {q.text for q in trained} & {q.text for q in held}
    assert len({q.facts for q in trained + held}) == len(trained) + len(held)


def test_two_hop_questions_need_both_facts(made: world.World):
    trained, held = world.questions(made, world.SEED)
    for q in trained + held:
        if q.hops == 2:
            first, second = q.facts
            assert second.subject.name == first.object
            assert first.object.lower() not in q.text.lower()
            assert q.answer == second.object != first.object


def test_question_lines_have_the_agreed_fields_and_both_hops():
    for name, least in (("train", 1500), ("heldout", 300)):
        rows = [json.loads(line) for line in (DATA / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]
        assert len(rows) >= least
        assert len({r["id"] for r in rows}) == len(rows)
        assert {r["data_source"] for r in rows} == {"atlas-1hop", "atlas-2hop"}
        assert all(r["data_source"] == f"atlas-{r['hops']}hop" and len(r["golden_answers"]) == 1 for r in rows)
        assert 0.4 <= sum(r["hops"] == 2 for r in rows) / len(rows) <= 0.6


def test_answers_vary_within_every_relation(made: world.World):
    rng = random.Random(0)
    for relation in world.RELATIONS:
        facts = [f for f in made.facts.values() if f.relation is relation]
        assert len({world.one_hop(f, rng).answer for f in facts}) >= min(8, len(facts))
