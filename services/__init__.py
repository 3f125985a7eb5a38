"""The processes of a run: actor, learner, replay, env_search. None imports another."""
