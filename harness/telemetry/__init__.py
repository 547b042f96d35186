"""What the machine is and what an engine uses while it is measured."""

from harness.telemetry.hardware import gpus, hardware, software
from harness.telemetry.recorder import Recorder

__all__ = ["Recorder", "gpus", "hardware", "software"]
