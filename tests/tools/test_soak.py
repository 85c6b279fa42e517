"""A short soak: kills and resumes on real ranks."""

import pytest

from tools.soak import soak


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_eight_kills_lose_and_repeat_nothing() -> None:
    result = soak(kills=8, num_samples=1000, seed=1)
    assert result.startswith("kills=8 lost=0 repeated=0 "), result
