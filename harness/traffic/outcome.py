"""What the client leaves beside its record, for whoever started it. No gevent here: the harness reads it."""

EXIT_STORAGE = 74
"""Exit code of a client that could not write its record (`EX_IOERR` of sysexits)."""

EXIT_FAULT = 70
"""Exit code of a client that was stopped early or is at fault itself (`EX_SOFTWARE` of sysexits)."""

WORKERS_FILE = "workers.json"
"""In the cell's folder: what became of each of several client processes."""
