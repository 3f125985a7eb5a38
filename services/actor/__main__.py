"""`python -m services.actor`: one actor with the configuration of HEADRACE_CONFIG and HEADRACE_* variables."""

import os
import sys

from services.actor.engines.engine import EngineFailed
from services.actor.service import serve
from shared.service import run_service

if __name__ == "__main__":
    try:
        run_service("actor", serve)  # a UserError ends it with status 2
    except EngineFailed as error:
        print(f"actor: {error}", file=sys.stderr, flush=True)
        os._exit(1)  # a thread or a child of a broken engine must not keep the process from ending
    os._exit(0)  # everything is closed by now, and taking torch down politely can take seconds
