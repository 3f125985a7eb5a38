"""A prompt that a policy may ask again: the durable form, one per question of the data set."""

import msgspec


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """As the latest training group of the question left it."""

    question: int  # its place in the data set
    step: int  # when that group was heard of
    right: int  # of `scored` responses
    scored: int
    asked: int = -1  # the last step it was asked again at
    retired: bool = False  # never to be asked again
