"""Health of a worker container: it offers slots in Redis, as only a worker that consumes does. Exit code 0 or 1."""

import os
import socket
import sys

from worker.store.hints import Hints

here = f"{socket.gethostname()}-"
sys.exit(not any(worker.name.startswith(here) for worker in Hints(os.environ["DAWN_REDIS_URL"]).workers()))
