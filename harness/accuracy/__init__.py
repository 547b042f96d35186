"""What a strategy costs in quality: forced decode against the 16-bit cache, and tasks on the served endpoint."""

from harness.accuracy.run import run_task
from harness.accuracy.task import Task, check_task

__all__ = ["Task", "check_task", "run_task"]
