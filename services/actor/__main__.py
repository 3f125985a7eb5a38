"""`python -m services.actor`: one actor with the configuration of HEADRACE_CONFIG and HEADRACE_* variables."""

import os
import sys
from contextlib import suppress

import psutil

from services.actor.engines.engine import EngineFailed
from services.actor.service import serve
from shared.config import Config
from shared.service import run_service


async def _serve(config: Config) -> None:
    try:
        await serve(config)
    except EngineFailed as error:
        # a thread or a child of a broken engine must not keep the process from ending, as the end of the loop would
        print(f"actor: {error}", file=sys.stderr, flush=True)
        for child in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):
                child.kill()
        os._exit(1)


if __name__ == "__main__":
    run_service("actor", _serve)  # a UserError ends it with status 2
    os._exit(0)  # everything is closed by now, and taking torch down politely can take seconds
