"""How the load client runs: in how many processes, on which cores and machines, over which transport."""

from dataclasses import dataclass
from pathlib import Path

from harness.errors import ConfigError

TRANSPORTS = ("auto", "pure", "compiled")

API_KEY = "KVMARK_API_KEY"
"""Environment variable with the key of an endpoint that asks for one: never on a command line, never in a record."""


@dataclass
class ClientOptions:
    """`scenario.client`: how the load client runs. What it sends is the load's matter, and the same for all of these.

    Attributes
    ----------
    processes : int
        Client processes on this machine, >= 1.
    workers : int
        Client processes on other machines, which then send the whole load; 0: this machine sends it.
    workers_wait_s : float
        How long to wait for them, > 0.
    bind_host : str
        Address of this machine at which it awaits them; ``*``: all of its addresses.
    bind_port : int
        Port at which it awaits them.
    web_port : int or None
        Port of Locust's web page on this machine while a load runs; None: no page.
    transport : str
        ``pure`` (Python), ``compiled`` (the extension), or ``auto``: compiled where it is built and speaks the scheme.
    keep_alive : bool
        Use a connection again after a complete answer.
    cores : list of int or None
        CPU cores of the client's processes here; None: all.
    ca_file : str or None
        Certificates (PEM) to trust at an https endpoint, instead of the system's.
    verify : bool
        Check an https endpoint's certificate and name.
    """

    processes: int = 1
    workers: int = 0
    workers_wait_s: float = 600.0
    bind_host: str = "*"
    bind_port: int = 5557
    web_port: int | None = None
    transport: str = "auto"
    keep_alive: bool = True
    cores: list[int] | None = None
    ca_file: str | None = None
    verify: bool = True

    def __post_init__(self) -> None:
        for key, low, high in (("processes", 1, 1024), ("workers", 0, 1024), ("bind_port", 1, 65535)):
            _in_range(key, getattr(self, key), low, high)
        if self.web_port is not None:
            _in_range("web_port", self.web_port, 1, 65535)
        if self.processes > 1 and self.workers:
            raise ConfigError(
                f"client.processes: {self.processes} with client.workers: {self.workers}: the load is sent either from "
                "here or from other machines; set workers to 0 or processes to 1 (a worker may be started here as well)"
            )
        if not 0 < self.workers_wait_s < float("inf"):
            raise ConfigError(f"client.workers_wait_s: {self.workers_wait_s} must be a number > 0")
        if not self.bind_host:
            raise ConfigError("client.bind_host: must be an address of this machine, or * for all of them")
        if self.transport not in TRANSPORTS:
            raise ConfigError(f"client.transport: '{self.transport}' is unknown; allowed: {', '.join(TRANSPORTS)}")
        if self.cores is not None and (not self.cores or min(self.cores) < 0):
            raise ConfigError(f"client.cores: {self.cores} must be core numbers >= 0, or null for all cores")
        if self.ca_file is not None and not Path(self.ca_file).is_file():
            raise ConfigError(f"client.ca_file: there is no file {self.ca_file}")

    @property
    def senders(self) -> int:
        """Processes that send."""
        return self.workers or self.processes


def _in_range(key: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise ConfigError(f"client.{key}: {value} must be between {low} and {high}")
