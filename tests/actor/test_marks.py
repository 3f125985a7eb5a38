"""A group is marked with what made it: the files as the actor has loaded them, not as they are by now."""

import shutil

from tests.actor.running import headers, make_task, send
from tests.actor.scripted_engine import ScriptedEngine

REWARD = """
def score(text):
    return float(len(text))
"""


def test_a_file_that_is_edited_while_the_actor_runs_changes_no_mark(
    make_config, model_dir, tmp_path, redis_url, client, start_actor
):
    model, reward = tmp_path / "model", tmp_path / "reward.py"
    shutil.copytree(model_dir, model)
    reward.write_text(REWARD)
    config = make_config(
        redis={"url": redis_url},
        env={"kind": "single"},
        model={"path": str(model)},
        reward={"function": f"{reward}:score"},
    )
    start_actor(config, ScriptedEngine(lambda ids, sampling: ([20, 21, 2], "eos")))
    send(client, make_task(0))
    before = headers(client, 1)[0].fingerprints
    reward.write_text(REWARD + "# edited\n")
    (model / "tokenizer.json").write_text("{}")
    send(client, make_task(1))
    first, second = headers(client, 2)
    assert not first.failure and first.rewards == second.rewards
    assert second.fingerprints == before and before.keys() == {"tokenizer", "template", "reward", "index"}
