"""`python -m services.learner`: check what can be checked before torch is imported, then work until the run ends."""

import logging

from services.learner.stop import Stop, Stopped, leave
from shared.config import Config
from shared.errors import UserError
from shared.gpu_lease import GpuLease, wait_until_claimed
from shared.metrics import serve_metrics
from shared.model_files import find_model
from shared.redis_client import wait_until_up
from shared.service import main

log = logging.getLogger("headrace")


def serve(config: Config) -> None:
    """The service. Returns when the run is finished or a signal asked it to leave."""
    stop = Stop()
    stop.on_signals()
    if not any(config.checkpoints_dir.glob("step_*")):
        find_model(config.model.path)
    if config.learner.kl > 0:
        find_model(config.model.kl_reference, "model.kl_reference")
    if not config.redis.url:
        raise UserError("redis.url is empty: name the server, as in redis://127.0.0.1:6379/0.")
    wait_until_up(config.redis.url, config.redis.wait_s)
    log.info("metrics on port %d", serve_metrics(config.learner.port, config.run.metrics_host))

    lease = GpuLease(config, "learner", 1)
    try:
        wait_until_claimed(lease, stop.wait)
        from services.learner.loop import Loop  # torch, only once all that needs none is right and the GPU is ours

        Loop(config, stop).run()
    except Stopped:
        log.info("stopped")
    finally:
        lease.release()


if __name__ == "__main__":
    main("learner", serve)
    leave()
