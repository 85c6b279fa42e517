"""The loss of each source of a mixture, at the steps that are logged."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from titan_integration.upstream import ChunkedLossWrapper


class SourceLoss:
    """Sums the loss by source while a step is trained, and is silent at all others.

    Takes the place of the loss function that torchtitan's loss calls on logits and labels, for
    all tokens or for one chunk of the length after the other. At a logged step it is asked once
    more per source, with the labels of the others masked: no gradient, the same numbers, also
    where the vocabulary is sharded. With one source it does nothing.

    Args:
        names: Of the sources.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self._waiting: list[torch.Tensor] = []  # of the step's microbatches, those to come
        self._now: torch.Tensor | None = None
        self._at = 0  # first token of the next chunk
        self._sums = torch.zeros(len(self.names), dtype=torch.float64)
        self._tokens = torch.zeros(len(self.names), dtype=torch.int64)

    def attach(self, loss: Any) -> None:
        """Listen to a torchtitan loss; its results stay as they are."""
        leaf = loss.loss_fn if isinstance(loss, ChunkedLossWrapper) else loss
        if len(self.names) < 2 or not hasattr(leaf, "fn"):
            return
        inner = leaf.fn

        def listening(pred: torch.Tensor, labels: torch.Tensor, **kwargs: Any) -> torch.Tensor:
            if self._now is not None and not isinstance(labels, DTensor):
                self._add(inner, pred.detach(), labels, kwargs)
            result: torch.Tensor = inner(pred, labels, **kwargs)
            return result

        leaf.fn = listening

    def begin_step(self, sources: Sequence[torch.Tensor]) -> None:
        """Sum up the step about to be trained; ``sources[B, L]`` of each of its microbatches."""
        self._waiting = list(sources)

    def begin_microbatch(self) -> None:
        """The next microbatch of the step comes."""
        self._now, self._at = (self._waiting.pop(0) if self._waiting else None), 0

    def end_step(self) -> None:
        """Whatever is computed from now on (a validation, say) is of no source."""
        self._waiting, self._now = [], None

    def take(self, group: dist.ProcessGroup | None) -> dict[str, float]:
        """Mean loss per token of each source that had any since last asked, over all ranks."""
        both = torch.stack([self._sums, self._tokens]).double().cpu()
        if group is not None:
            dist.all_reduce(both, group=group)
        self._sums, self._tokens = torch.zeros_like(self._sums), torch.zeros_like(self._tokens)
        return {
            name: float(total / tokens)
            for name, total, tokens in zip(self.names, *both, strict=True)
            if tokens
        }

    def _add(self, inner: Any, pred: torch.Tensor, labels: torch.Tensor, kwargs: Any) -> None:
        assert self._now is not None
        size = labels.shape[1]
        sources = self._now[:, self._at : self._at + size].to(labels.device, non_blocking=True)
        self._at += size
        self._sums, self._tokens = self._sums.to(labels.device), self._tokens.to(labels.device)
        with torch.no_grad():
            for number in range(len(self.names)):
                own = torch.where(sources == number, labels, -100)
                self._sums[number] += inner(pred, own, **kwargs).double()
                self._tokens[number] += (own != -100).sum()
