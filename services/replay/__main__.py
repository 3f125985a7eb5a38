"""python -m services.replay: HEADRACE_CONFIG names the run's TOML; HEADRACE_* variables override it."""

import asyncio

from shared.config import Config
from shared.service import run_service


async def serve(config: Config) -> None:
    """Check, connect, and run the service with its HTTP side until stopped."""
    from services.replay.http import make_app
    from services.replay.policies import get_policy
    from services.replay.service import Replay
    from shared.http_server import listen, serve_http
    from shared.metrics import watch_loop_lag
    from shared.only_one import OnlyOne, until_begun
    from shared.prompts import open_prompts
    from shared.redis_client import connect_async, until_up
    from shared.strangers import refuse_strangers

    get_policy(config.replay.policy)  # refused before anything is waited for
    sock = listen(config.replay.host, config.replay.port, "replay.port")
    own = bool(config.reward.function)
    train = open_prompts(config.data.train, whole_rows=own)
    held_out = open_prompts(config.data.eval, whole_rows=own) if config.data.eval else None
    await until_up(config.redis.url, config.redis.wait_s)
    await asyncio.to_thread(refuse_strangers, config.redis.url, config.run.name, new=False)
    only = OnlyOne(config, "replay")
    try:
        await until_begun(only)
        replay = Replay(config, connect_async(config.redis.url), train, held_out)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(replay.run())
            tasks.create_task(serve_http(make_app(replay), sock))
            tasks.create_task(watch_loop_lag("replay"))
    finally:
        only.leave()


if __name__ == "__main__":
    run_service("replay", serve)
