"""Runs Locust with nothing but what its command line says: `python -m harness.traffic.locust_process OPTIONS`

Locust also takes options from `LOCUST_*` variables and from `~/.locust.conf`, `locust.conf` and `pyproject.toml`, and
gevent its event loop from `GEVENT_*`: what somebody set for other tests must not change a measurement.
"""

import os
import resource
import sys


def main() -> None:
    """Run Locust in this process."""
    for name in list(os.environ):
        if name.startswith(("LOCUST_", "GEVENT_")):
            del os.environ[name]
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a stream needs a descriptor
    # Only now: Locust reads some of its variables when it is imported, and patches the standard library for gevent.
    from locust import argument_parser, runners
    from locust.main import main as run

    for function in (argument_parser.get_empty_argument_parser, argument_parser.get_parser):
        function.__defaults__ = (*(function.__defaults__ or ())[:-1], [])  # the files that are read by default
    # By the wall clock, which may step; `distributed.member` watches the master by the monotonic one.
    runners.MASTER_HEARTBEAT_TIMEOUT = 10 * 365 * 86400
    sys.argv[0] = "locust"
    run()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
