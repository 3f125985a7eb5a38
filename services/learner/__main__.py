"""`python -m services.learner`: check what can be checked before torch is imported, then work until the run ends."""

import logging
import os
import signal
from contextlib import nullcontext, suppress

from services.learner.ranks import launch
from services.learner.stop import Stop, Stopped, leave
from shared import malloc
from shared.config import Config
from shared.errors import UserError
from shared.gpu_lease import GpuLease, wait_until_claimed
from shared.learner_mark import LearnerMark
from shared.metrics import export_gpu_wait, open_metrics, serve_metrics
from shared.metrics_server import MetricsServer
from shared.model_files import find_model
from shared.only_one import OnlyOne, wait_until_begun
from shared.redis_client import wait_until_up
from shared.service import main

log = logging.getLogger("headrace")


def serve(config: Config) -> None:
    """The service. Returns when the run is finished or a signal asked it to leave."""
    malloc.keep_freed()
    if launch.is_rank() and int(os.environ["RANK"]) > 0:
        _follow(config)
        return
    stop = Stop(config.run.stop_s)
    stop.on_signals()
    if config.learner.lora_rank or not any(config.checkpoints_dir.glob("step_*")):
        find_model(config.model.path)
    if config.learner.kl > 0 and config.model.kl_reference:
        find_model(config.model.kl_reference, "model.kl_reference")
    if not config.redis.url:
        raise UserError("redis.url is empty: name the server, as in redis://127.0.0.1:6379/0.")
    wait_until_up(config.redis.url, config.redis.wait_s)
    if launch.is_rank():
        with suppress(Stopped), LearnerMark(config):
            _lead(config, stop)
        return

    lease, only = GpuLease(config, "learner", config.learner.ranks), OnlyOne(config, "learner")
    try:
        wait_until_begun(only, stop.wait)
        # before the wait: who waits for a GPU is well, and says so
        server = open_metrics(config.learner.port, config.run.metrics_host, lambda: lease.waiting_for)
        export_gpu_wait("learner", lambda: lease.waiting_s)
        log.info("metrics on port %d", server.server_port)
        wait_until_claimed(lease, stop.wait)
        with nullcontext() if lease.devices else LearnerMark(config):
            _work(config, stop, server)
    except Stopped:
        log.info("stopped")
    finally:
        lease.release()
        only.leave()


def _work(config: Config, stop: Stop, server: MetricsServer) -> None:
    if config.learner.ranks > 1:
        server.stop()  # the port is the leading rank's
        if status := launch.run_ranks(config.learner.ranks, config.run.stop_s):
            raise SystemExit(status)  # what is held is given back on the way
        return
    from services.learner.loop import Loop  # torch, only once all that needs none is right and the GPU is ours

    Loop(config, stop).run()


def _lead(config: Config, stop: Stop) -> None:
    from services.learner.loop import Loop
    from services.learner.model.policy import pick_device
    from services.learner.ranks.members import join

    log.info("metrics on port %d", serve_metrics(config.learner.port, config.run.metrics_host))
    Loop(config, stop, join(pick_device(config.learner.device))).run()


def _follow(config: Config) -> None:
    """A rank that does not lead; whoever started it ends it when rank 0 has ended."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    from services.learner.ranks.follower import follow

    follow(config)


if __name__ == "__main__":
    main("learner", serve)
    leave()
