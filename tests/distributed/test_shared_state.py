"""One value for the states of all ranks: through every checkpoint library, to any world size."""

import io
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from odb_nodes import OdbLoader, SharedState, StateError, odb_loader
from tests.helpers import Tokens, positions, random_lengths, run_ranks

COUNT = 150
KINDS = ("torch.save", "dcp", "accelerate")


def build(rank: int, size: int) -> OdbLoader:
    group = dist.new_group(backend="gloo") if size > 1 else None
    ranks: Any = {"rank": rank, "world_size": size, "process_group": group}
    return odb_loader(Tokens(random_lengths(COUNT)), token_budget=256, window=16, **ranks)


def save(kind: str, shared: SharedState, folder: Path) -> None:
    if kind == "dcp":
        dcp.save({"model": {"w": torch.ones(3)}, "data": shared}, checkpoint_id=folder / "dcp")
    elif kind == "accelerate":
        accelerator_of(shared).save_state(str(folder / "accelerate"))
    else:
        state = shared.state_dict()
        if shared.loader.align.transport.rank == 0:
            torch.save({"data": state}, folder / "last.pt")
    dist.barrier()


def load(kind: str, shared: SharedState, folder: Path) -> None:
    if kind == "dcp":
        dcp.load({"model": {"w": torch.zeros(3)}, "data": shared}, checkpoint_id=folder / "dcp")
    elif kind == "accelerate":
        accelerator_of(shared).load_state(str(folder / "accelerate"))
    else:
        saved = torch.load(folder / "last.pt", weights_only=True)
        shared.load_state_dict(saved["data"])


def accelerator_of(shared: SharedState) -> Any:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    accelerator.register_for_checkpointing(shared)
    return accelerator


def train_part(
    rank: int, size: int, folder: Path, resume: bool, steps: int | None
) -> list[tuple[list[int], int, str]]:
    """By kind of checkpoint: positions of some steps, the epoch, and what was then saved."""
    results = []
    for kind in KINDS:
        with build(rank, size) as loader:
            shared = SharedState(loader)
            if resume:
                load(kind, shared, folder)
            batches = []
            for batch in loader:
                batches.append(batch)
                if len(batches) == steps:
                    break
            save(kind, shared, folder)
            text = shared.state_dict()[SharedState.KEY]
            results.append((positions(batches), shared.epoch, text))
    return results


def test_the_state_goes_through_every_checkpoint_to_other_world_sizes(tmp_path: Path) -> None:
    seen: dict[str, Counter[int]] = {kind: Counter() for kind in KINDS}
    for part, (size, steps) in enumerate(((2, 3), (1, 2), (3, None))):
        ranks = run_ranks(train_part, size, tmp_path, part > 0, steps)
        for kind, results in zip(KINDS, zip(*ranks, strict=True), strict=True):
            assert len({text for _, _, text in results}) == 1, f"{kind}: the ranks' values differ"
            assert {epoch for _, epoch, _ in results} == {0}
            seen[kind].update(position for found, _, _ in results for position in found)
    for kind, counter in seen.items():
        assert sorted(counter.elements()) == list(range(COUNT)), kind
    ranks = run_ranks(train_part, 2, tmp_path, True, None)
    for results in zip(*ranks, strict=True):
        assert {epoch for _, epoch, _ in results} == {1}, "what was saved was a whole epoch"
        again = [position for found, _, _ in results for position in found]
        assert sorted(again) == list(range(COUNT))


def test_a_world_of_one_needs_no_process_group() -> None:
    with build(0, 1) as loader:
        first = next(iter(loader))
        buffer = io.BytesIO()
        torch.save(SharedState(loader).state_dict(), buffer)
    buffer.seek(0)
    with build(0, 1) as loader:
        SharedState(loader).load_state_dict(torch.load(buffer, weights_only=True))
        rest = list(loader)
    assert sorted(positions([first, *rest])) == list(range(COUNT))


def test_a_state_from_before_the_first_batch_is_the_beginning() -> None:
    with build(0, 1) as loader:
        state = SharedState(loader).state_dict()
    with build(0, 1) as loader:
        SharedState(loader).load_state_dict(state)
        assert sorted(positions(list(loader))) == list(range(COUNT))


@pytest.mark.parametrize("wrong", [{}, {"odb": 3}, {"odb": "no base64!"}, {"odb": "AAAA"}])
def test_what_is_no_shared_state_is_refused(wrong: dict[str, Any]) -> None:
    with build(0, 1) as loader, pytest.raises(StateError, match="state"):
        SharedState(loader).load_state_dict(wrong)


def group_of_others(rank: int, size: int) -> str:
    part = dist.new_group([0, 1], backend="gloo")
    with build(rank, size) as loader:
        if rank == 2:
            loader.state_dict()
            return ""
        with pytest.raises(ValueError, match="process_group must have") as error:
            SharedState(loader, part).state_dict()
        return str(error.value)


def test_a_group_that_is_not_of_the_loaders_ranks_is_refused() -> None:
    assert "3 ranks, got 2" in run_ranks(group_of_others, 3)[0]
