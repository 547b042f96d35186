import pytest

from harness.accuracy.sandbox.available import probed
from harness.accuracy.sandbox.process import Sandbox

WORKING = [one for one, problem in probed() if problem is None]


@pytest.fixture(params=WORKING or [None], ids=lambda one: one.name if one else "refused")
def sandbox(request: pytest.FixtureRequest) -> Sandbox:
    """Each sandbox that works here; where none does, `test_available.py` still holds the refusal."""
    if request.param is None:
        pytest.skip(f"no sandbox works here: {probed()}")
    found: Sandbox = request.param
    return found
