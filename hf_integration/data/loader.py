"""``odb_loader`` on a Trainer's dataset and collator."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from hf_integration.arguments import OdbArguments
from hf_integration.data.steps import num_padded_tokens
from hf_integration.upstream import preparer
from odb_nodes import OdbLoader, Rounding, TokenBudget, odb_loader

logger = logging.getLogger(__name__)
Length = Callable[[Any], int]


class Collate:
    """A Trainer's collator on rows of its own: a row masked for an IDLE step is used again."""

    def __init__(self, collator: Callable[[list[Any]], Any], token_budget: int) -> None:
        self._collator, self._budget = collator, token_budget
        self._warned = False

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> Any:
        """Collate; warns once where the collator's own padding passes the budget."""
        batch = self._collator([dict(row) for row in rows])
        padded = num_padded_tokens(batch, None)
        if len(rows) > 1 and padded > self._budget and not self._warned:
            self._warned = True
            logger.warning(
                "token_budget is %d but the collator padded %d rows to %d tokens: set its padding "
                "to the longest row, and pad_to_multiple_of of OdbArguments to its own",
                self._budget,
                len(rows),
                padded,
            )
        return batch


def make_loader(
    trainer: Any, odb: OdbArguments, *, length: Length | None, shuffle: bool, group: Any
) -> OdbLoader:
    """The training loader of this rank.

    Args:
        trainer: With dataset, collator and training arguments.
        odb: Settings of the batches.
        length: ``row -> tokens``; None is the length of "input_ids".
        shuffle: A new order per epoch.
        group: A gloo group that nothing else uses; None in a world of one.
    """
    args = trainer.args
    dataset, collator = preparer(trainer, trainer.train_dataset)
    multiple = odb.pad_to_multiple_of or getattr(trainer.data_collator, "pad_to_multiple_of", None)
    rounding = Rounding(multiple=multiple) if multiple else None
    return odb_loader(
        dataset,
        token_budget=TokenBudget(odb.token_budget, rounding=rounding),
        window=odb.window,
        length=length,
        num_workers=args.dataloader_num_workers,
        worker_method=odb.worker_method,
        multiprocessing_context=getattr(args, "dataloader_multiprocessing_context", None),
        process_group=group,
        rank=args.process_index,
        world_size=args.world_size,
        shuffle=shuffle,
        seed=args.seed if args.data_seed is None else args.data_seed,
        join=odb.join,
        policy=odb.policy,
        collate=Collate(collator, odb.token_budget),
        prefetch=args.dataloader_prefetch_factor or odb.prefetch,
        pin_memory=args.dataloader_pin_memory and torch.cuda.is_available(),
        on_error=odb.on_error,
        overlong=odb.overlong,
        timeout_s=odb.timeout_s,
    )
