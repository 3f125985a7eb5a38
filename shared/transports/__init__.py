"""How a version's files travel from the learner to actors that do not share its weights folder.

    services/learner/weights/transports/    services/actor/transports/    here
    folder.py                               folder.py                     nothing travels
    redis_chunks.py                         redis_chunks.py               chunks.py: the form; delta.py: differences
    broadcast.py                            broadcast.py                  broadcast.py: rounds; carrier.py: a member

The learner's half sends a version that lies in its folder; the actor's half gives a local folder with the same files.
What follows is the same for all: the digest, the canary, the swap.
"""
