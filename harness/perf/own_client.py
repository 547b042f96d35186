"""Our load client as a program: `replay` of a schedule, its conversion to `requests.parquet` included.

python -m harness.perf.own_client LOAD.json SCHEDULE BASE_URL OUT TRANSPORT
"""

import json
import sys
from pathlib import Path

from harness.traffic.client_options import ClientOptions
from harness.traffic.load import Load
from harness.traffic.replay import replay


def main(load: str, schedule: str, base_url: str, out: str, transport: str) -> None:
    """Play it."""
    replay(
        Load(**json.loads(Path(load).read_text())),
        schedule_path=Path(schedule),
        base_url=base_url,
        out_dir=Path(out),
        env={},
        on_progress=lambda done, total: None,
        options=ClientOptions(transport=transport),
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
