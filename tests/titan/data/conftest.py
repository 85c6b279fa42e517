"""What the tests of this folder share."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.titan.data.chats import STABLE, make_encoder
from titan_integration.data.encoding.encoder import Encoder


@pytest.fixture
def encoder_for(tokenizer: Path, tmp_path: Path) -> Callable[..., Encoder]:
    """Makes encoders: ``encoder_for(template, too_long="drop", ...)``."""

    def make(template: str = STABLE, **changes: Any) -> Encoder:
        return make_encoder(tokenizer, tmp_path, template, **changes)

    return make
