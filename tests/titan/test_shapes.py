"""Batch shapes: the token budget holds after padding, and buckets keep lengths few."""

from pathlib import Path
from typing import Any

import pytest

from odb_nodes import Rounding
from titan_integration.data.config import DataConfig, OdbConfig
from titan_integration.data.dataloader import OdbDataLoader
from titan_integration.upstream import HuggingFaceTokenizer

BUDGET = 1024
SEQ_LEN = 4000


def _loader(rows: Path, tokenizer: Path, multiple: int, odb: OdbConfig) -> OdbDataLoader:
    config = OdbDataLoader.Config(
        data=DataConfig(path=[str(rows)], too_long="truncate", odb=odb),
        pad_to_multiple_of=multiple,
    )
    hf = HuggingFaceTokenizer(tokenizer_path=str(tokenizer))
    return OdbDataLoader(config, dp_world_size=1, dp_rank=0, tokenizer=hf, seq_len=SEQ_LEN)


@pytest.mark.parametrize("layout", ["padded", "packed"])
@pytest.mark.parametrize(("multiple", "buckets"), [(32, None), (8, 2)])
def test_padded_batches_stay_in_the_budget_and_in_the_buckets(
    rows: Path, tokenizer: Path, multiple: int, buckets: int | None, layout: str
) -> None:
    odb = OdbConfig(token_budget=BUDGET, window=64, layout=layout, shape_buckets=buckets)  # type: ignore[arg-type]
    loader = _loader(rows, tokenizer, multiple, odb)
    longest = BUDGET if layout == "packed" else SEQ_LEN
    rounding = Rounding(multiple=multiple, per_doubling=buckets, longest=longest)
    allowed = {rounding.up(length) for length in range(1, SEQ_LEN + 1)}
    for inputs, labels in loader:
        assert loader.info is not None
        assert inputs["input"].shape == labels.shape
        assert labels.shape[1] in allowed
        assert labels.shape[1] % multiple == 0
        if loader.info.num_samples > 1:
            assert labels.numel() <= BUDGET
    loader.close()
    samples: list[Any] = [loader.encoder(loader.samples[i]) for i in range(len(loader.samples))]
    real = sum(len(sample["input_ids"]) for sample in samples)
    assert loader.totals.tokens == real < loader.totals.padded_tokens
    assert loader.totals.samples == len(loader.rows)
    if buckets is not None:
        lengths = {length for _, length in loader.shapes}
        assert len(lengths) <= 24 < len(loader.rows)
