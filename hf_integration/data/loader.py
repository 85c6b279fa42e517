"""``odb_loader`` on a Trainer's dataset and collator."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from hf_integration.arguments import OdbArguments
from hf_integration.data.steps import num_padded_tokens
from hf_integration.errors import Refusal
from hf_integration.upstream import lays_end_to_end, preparer
from odb_nodes import OdbLoader, PackCollate, Rounding, TokenBudget, odb_loader
from odb_nodes.vision import VisionCollate, vision_length

logger = logging.getLogger(__name__)
Length = Callable[[Any], int]


class Collate:
    """A Trainer's collator on rows of its own: a row masked for an IDLE step is used again.

    Args:
        collator: The Trainer's.
        layout: "padded" or "packed", as the samples of a batch were chosen.
        token_budget: What a batch may hold in it.
    """

    def __init__(
        self, collator: Callable[[list[Any]], Any], layout: str, token_budget: int
    ) -> None:
        self._collator, self._layout, self._budget = collator, layout, token_budget
        self._warned = False

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> Any:
        """Collate; warns once where the collator's own padding passes the budget.

        Raises:
            Refusal: The samples were chosen to be laid end to end, and are side by side.
        """
        batch = self._collator([dict(row) for row in rows])
        if len(rows) > 1 and not self._warned:
            self._check(batch, len(rows))
        return batch

    def _check(self, batch: Any, num_rows: int) -> None:
        padded = num_padded_tokens(batch, None)
        if self._layout == "packed" and len(batch.get("input_ids", ())) > 1:
            raise Refusal(
                'layout="packed" needs a collator that lays samples end to end '
                "(padding_free=True of SFTConfig, DataCollatorWithFlattening, PackCollate), got "
                f'{len(batch["input_ids"])} rows from it; set layout="padded" to pad them'
            )
        if padded > self._budget:
            self._warned = True
            logger.warning(
                "token_budget is %d but the collator padded %d rows to %d tokens: set its padding "
                "to the longest row, and pad_to_multiple_of of OdbArguments to its own",
                self._budget,
                num_rows,
                padded,
            )


def layout_of(trainer: Any, odb: OdbArguments) -> str:
    """How the Trainer's collator lays samples, as far as it tells and unless it is said."""
    if odb.layout != "auto":
        return odb.layout
    collator = trainer.data_collator
    if isinstance(collator, VisionCollate):
        collator = collator.text
    end_to_end = lays_end_to_end(collator) or isinstance(collator, PackCollate)
    return "packed" if end_to_end else "padded"


def make_loader(
    trainer: Any, odb: OdbArguments, *, length: Length | None, shuffle: bool, group: Any
) -> OdbLoader:
    """The training loader of this rank.

    Args:
        trainer: With dataset, collator and training arguments.
        odb: Settings of the batches.
        length: ``row -> tokens``; None is the length of "input_ids", and the room of a black
            picture where pictures are collated.
        shuffle: A new order per epoch.
        group: A gloo group that nothing else uses; None in a world of one.
    """
    args = trainer.args
    dataset, collator = preparer(trainer, trainer.train_dataset)
    multiple = odb.pad_to_multiple_of or getattr(trainer.data_collator, "pad_to_multiple_of", None)
    rounding = Rounding(multiple=multiple) if multiple else None
    layout = layout_of(trainer, odb)
    with_pictures = isinstance(trainer.data_collator, VisionCollate)
    if length is None and with_pictures:
        length = vision_length
    return odb_loader(
        dataset,
        token_budget=TokenBudget(odb.token_budget, rounding=rounding),
        layout=layout,
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
        filler=trainer.data_collator.idle if with_pictures else None,
        collate=Collate(collator, layout, odb.token_budget),
        prefetch=args.dataloader_prefetch_factor or odb.prefetch,
        pin_memory=args.dataloader_pin_memory and torch.cuda.is_available(),
        on_error=odb.on_error,
        overlong=odb.overlong,
        timeout_s=odb.timeout_s,
    )
