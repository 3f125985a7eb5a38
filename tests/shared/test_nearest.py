"""The hint behind a word that is not known."""

from shared.nearest import hint


def test_the_nearest_word_is_asked_for_and_without_one_all_are_named():
    known = ["naive", "none", "uniform"]
    assert hint("nave", known) == "did you mean 'naive'?"
    assert hint("zzz", known) == "there are naive, none, uniform."
    assert hint("zzz", known, shown=["policies"]) == "there are policies."
    assert hint("unifrm", iter(known)) == "did you mean 'uniform'?"


def test_a_short_list_may_ask_for_words_that_are_nearer():
    assert hint("trian", ["tau", "eval"], cutoff=0.6) == "there are tau, eval."
