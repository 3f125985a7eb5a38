"""A prompt that a policy may ask again: the durable form, one per question of the data set."""

from typing import Annotated

import msgspec

from services.replay.buffer import Place


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """As the latest training group of the question left it."""

    question: Place  # its place in the data set
    step: Place  # when that group was heard of
    right: Place  # of `scored` responses
    scored: Place
    asked: Annotated[int, msgspec.Meta(ge=-1, lt=2**31)] = -1  # the last step it was asked again at
    retired: bool = False  # never to be asked again
