"""The learner's two numbers in Redis, where somebody has written over them."""

import pytest
import redis

from services.learner.talk import lineage
from shared.errors import UserError
from shared.streams import Keys, saved_key

KEYS = Keys("lives")


@pytest.mark.parametrize("value", ["", "one", "-1", "9" * 5000])
def test_what_is_no_count_is_told_in_a_sentence(redis_url: str, value: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        for key in (lineage.lives_key(KEYS), saved_key(KEYS)):
            client.set(key, value)
        for read in (lambda: lineage.saved_step(client, KEYS), lambda: lineage.open_lineage(client, KEYS, -1)):
            with pytest.raises(UserError, match=r"which is no count .* delete the key"):
                read()
