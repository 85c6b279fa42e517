"""torchtitan's own fixed-size batches on the same rows (``--data.odb.no-enable``)."""

from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import tyro
from datasets import Dataset

from titan_integration.data.checks.check import check_rows
from titan_integration.data.config import DataConfig
from titan_integration.data.encoding.encoder import Encoder
from titan_integration.data.formats import to_document
from titan_integration.data.formats.document import Reading, RowError
from titan_integration.errors import UserError
from titan_integration.process_groups import data_group
from titan_integration.upstream import ChatDataset, HuggingFaceTokenizer, ParallelAwareDataloader


class StockDataLoader(ParallelAwareDataloader):
    """torchtitan's ChatDataset (greedy packing to ``seq_len``, repeated without end) on our rows.

    Takes one prompt and one answer a row, as torchtitan does, and drops rows that are too long.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(ParallelAwareDataloader.Config):
        data: Annotated[DataConfig, tyro.conf.Suppress] = field(default_factory=DataConfig)
        infinite: bool = True

    def __init__(
        self,
        config: Config,
        *,
        dp_world_size: int,
        dp_rank: int,
        tokenizer: HuggingFaceTokenizer,
        seq_len: int,
        local_batch_size: int,
        snapshot_every_n_steps: int | None = 1,
        **_: Any,
    ) -> None:
        data = config.data
        rows = data.inputs().open()
        encoding = replace(data.encoding(max_len=seq_len), too_long="drop")
        reading = encoding.reading
        encoder = Encoder(tokenizer, encoding)
        check_rows(
            rows,
            encoder,
            skip_errors=False,
            dp_rank=dp_rank,
            dp_world_size=dp_world_size,
            group=data_group("state", dp_rank, dp_world_size),
        )
        pairs = [index for index in range(len(rows)) if _is_pair(rows[index], reading)]
        if not pairs:
            raise UserError("the stock loader takes one prompt and one answer a row, got none")
        dataset = ChatDataset(
            dataset=Dataset.from_dict({"row": pairs}),
            tokenizer=tokenizer,
            sample_processor=lambda row: to_document(rows[row["row"]], reading).messages,
            seq_len=seq_len,
            dp_rank=dp_rank,
            dp_world_size=dp_world_size,
            infinite=config.infinite,
        )
        super().__init__(
            dataset,
            dp_rank=dp_rank,
            dp_world_size=dp_world_size,
            batch_size=local_batch_size,
            snapshot_every_n_steps=snapshot_every_n_steps,
        )


def _is_pair(row: Any, reading: Reading) -> bool:
    try:
        messages = to_document(row, reading).messages
    except RowError:
        return False
    return [message["role"] for message in messages] == ["user", "assistant"]
