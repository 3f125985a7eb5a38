"""What the learner waits for besides work, to Prometheus; each is 0 while it does not."""

from prometheus_client import Gauge

from shared.metrics import RedisWait
from shared.outage import Outage

REDIS = Outage(RedisWait("learner"))
ROOM = Gauge("headrace_learner_room_wait_seconds", "how long it has been waiting for room in Redis for weights")
DISK = Gauge("headrace_learner_disk_wait_seconds", "how long it has been waiting for room on the disk of its files")
