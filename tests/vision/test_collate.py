"""Samples with pictures to batches, each with a picture, whatever was in the group."""

import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from odb_nodes import (
    Limit,
    PackCollate,
    PadCollate,
    Rounding,
    SampleError,
    TokenBudget,
    odb_loader,
)
from odb_nodes.testing import InProcessWorld
from odb_nodes.vision import (
    Geometry,
    Picture,
    PictureError,
    VisionCollate,
    expand_pictures,
    grid_positions,
    num_patches,
    patches_of,
    read_picture,
    vision_length,
)
from tests.vision.drawn import IMAGE_ID, SMALL, as_bytes, noise

SIZES = [(32, 32), (64, 96), (150, 40), (100, 130)]
PICTURES = [read_picture(as_bytes(noise(*size)), SMALL) for size in SIZES]


def sample(pictures: Sequence[int], words: int, **more: Any) -> dict[str, Any]:
    """Words, and a picture behind each of the first; half of the words carry loss."""
    ids = [1 + i % 50 for i in range(words)]
    for at in range(len(pictures)):
        ids.insert(2 * at + 1, IMAGE_ID)
    labels = [-100 if token == IMAGE_ID or i % 2 else token for i, token in enumerate(ids)]
    chosen = [PICTURES[i] for i in pictures]
    columns = expand_pictures({"input_ids": ids, "labels": labels}, chosen, SMALL, IMAGE_ID)
    return {**columns, "pictures": chosen, **more}


def collate(text: Any = None, **options: Any) -> VisionCollate:
    return VisionCollate(text, SMALL, IMAGE_ID, **options)


SAMPLES = st.lists(
    st.builds(sample, st.lists(st.integers(0, 3), max_size=2), st.integers(3, 12)),
    min_size=1,
    max_size=4,
)
TEXTS: dict[str, Callable[[], Any]] = {
    "padded": lambda: PadCollate(),
    "padded with positions": lambda: PadCollate(positions=True),
    "padded to 16": lambda: PadCollate(positions=True, pad_to_multiple_of=16),
    "packed by PadCollate": lambda: PadCollate(layout="packed"),
    "packed": lambda: PackCollate(),
    "packed, documents of 8": lambda: PackCollate(pad_documents_to=8),
    "packed, two rows": lambda: PackCollate(160, rows=2, shape="fixed"),
}


def documents(batch: dict[str, Any], samples: Sequence[dict[str, Any]]) -> list[tuple[int, int]]:
    """Row and first column of each sample, found by its ids."""
    found, ids = [], np.asarray(batch["input_ids"])
    taken = np.zeros(ids.shape, bool)
    for one in samples:
        size = len(one["input_ids"])
        for row, column in np.ndindex(ids.shape[0], ids.shape[1] - size + 1):
            place = row, slice(column, column + size)
            if not taken[place].any() and np.array_equal(ids[place], one["input_ids"]):
                taken[place] = True
                found.append((row, column))
                break
    return found


@pytest.mark.parametrize("text", TEXTS)
@settings(deadline=None, max_examples=15)
@given(samples=SAMPLES)
def test_batches_hold_what_their_samples_hold_and_at_least_one_picture(
    text: str, samples: Any
) -> None:
    batch = collate(TEXTS[text]())(samples)
    pictures = [picture for one in samples for picture in one["pictures"]]
    places = documents(batch, samples)
    assert len(places) == len(samples)
    for one, (row, column) in zip(samples, places, strict=True):
        inside = row, slice(column, column + len(one["input_ids"]))
        assert np.array_equal(batch["labels"][inside], one["labels"])
        grids = [picture.grid for picture in one["pictures"]]
        wanted = grid_positions(one["input_ids"] == IMAGE_ID, grids, SMALL.merge)
        assert np.array_equal(batch["positions3"][inside], wanted)
    tokens = int((batch["input_ids"] == IMAGE_ID).sum())
    assert tokens == sum(SMALL.tokens(tuple(grid)) for grid in batch["grid_thw"].tolist())
    if pictures:
        decoded = np.concatenate([patches_of(picture, SMALL) for picture in pictures])
        assert np.array_equal(batch["patches"], decoded)
        assert batch["grid_thw"].tolist() == [list(picture.grid) for picture in pictures]
    else:
        assert batch["patches"].shape == (4, SMALL.patch_size)
        assert not batch["patches"].any()
        assert tokens == 1


@pytest.mark.parametrize("text", TEXTS)
def test_the_black_picture_stands_behind_all_it_could_influence(text: str) -> None:
    samples = [sample([], 9), sample([], 5), sample([], 7)]
    batch = collate(TEXTS[text]())(samples)
    row, column = torch.nonzero(batch["input_ids"] == IMAGE_ID)[0].tolist()
    assert batch["labels"][row, column] == -100
    behind = [c + len(s["input_ids"]) for s, (r, c) in zip(
        samples, documents(batch, samples), strict=True) if r == row]  # fmt: skip
    assert column in behind
    positions = batch.get("positions", batch.get("position_ids"))
    if positions is not None and "documents" not in text:
        assert positions[row, column] == 0
        assert batch["positions3"][row, column].tolist() == [0, 0, 0]
        if column + 1 < positions.shape[1]:
            assert positions[row, column + 1] == 0
    if positions is not None and "cu_seqlens" in batch and "documents" not in text:
        assert row * positions.shape[1] + column in batch["cu_seqlens"].tolist()


def test_the_black_picture_changes_no_key_that_goes_by_sample() -> None:
    for make in TEXTS.values():
        samples = [sample([], n, source=f"file {n}") for n in (6, 4)]
        assert collate(make())(samples)["source"] == ["file 6", "file 4"]


def test_other_keys_with_a_value_per_token_get_their_padding_there() -> None:
    samples = [sample([], n, attention_mask=[1] * n, weight=[0.5] * n) for n in (4, 4)]
    batch = collate(PadCollate({"weight": 0.25}))(samples)
    assert batch["attention_mask"].sum(1).tolist() == [4, 4]
    assert batch["weight"][0].tolist() == [0.5] * 4 + [0.25]


def test_a_collate_of_ones_own_gets_texts_only_and_may_label_every_token() -> None:
    def label_all(rows: list[Any]) -> dict[str, torch.Tensor]:
        assert all("pictures" not in row for row in rows)
        ids = PadCollate()(rows)["input_ids"]
        return {"input_ids": ids, "labels": ids.clone()}

    batch = collate(label_all)([sample([], 3), sample([], 6)])
    assert batch["input_ids"][0].tolist() == [1, 2, 3, IMAGE_ID, 0, 0]
    assert batch["labels"][0].tolist() == [1, 2, 3, -100, 0, 0]


def test_patches_are_rounded_up_with_zeros() -> None:
    batch = collate(rounding=Rounding(multiple=64))([sample([1, 2], 4)])
    real = int(batch["grid_thw"].prod(-1).sum())
    assert len(batch["patches"]) == 64 > real
    assert not batch["patches"][real:].any()


def test_models_without_positions_by_grid_get_none() -> None:
    assert "positions3" not in collate(grid_positions=False)([sample([1], 4)])


def test_a_collate_travels_to_another_process_without_its_threads() -> None:
    made = collate()
    first = made([sample([0], 3)])
    again = pickle.loads(pickle.dumps(made))([sample([0], 3)])
    assert torch.equal(first["patches"], again["patches"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"image_id": None}, "image_id"),
        ({"image_id": 0}, "padding"),
        ({"threads": 0}, "threads"),
    ],
)
def test_settings_that_cannot_be_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        VisionCollate(**{"image_id": IMAGE_ID, **change})


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ([{"input_ids": [1], "labels": [1]}], '"pictures"'),
        ([{**sample([1], 4), "pictures": []}], "which stands for a picture's token"),
        ([{**sample([1], 4), "pictures": [PICTURES[2]]}], "expand each placeholder"),
        ([{**sample([1], 4), "pictures": PICTURES[:2]}], "expand each placeholder"),
    ],
)
def test_samples_that_do_not_match_their_pictures_are_refused(samples: Any, message: str) -> None:
    with pytest.raises(SampleError, match=message):
        collate()(samples)


def test_placeholders_are_as_many_as_pictures() -> None:
    with pytest.raises(SampleError, match="1 pictures and 2 placeholders"):
        expand_pictures({"input_ids": [IMAGE_ID, 1, IMAGE_ID]}, PICTURES[:1], SMALL, IMAGE_ID)


# In a loader


class Rows:
    """Rows with none, one or two pictures, by number."""

    def __init__(self, count: int, seed: int = 0) -> None:
        random = np.random.default_rng(seed)
        self.rows = [
            (
                random.integers(0, 4, random.choice([0, 0, 1, 2])).tolist(),
                int(random.integers(3, 60)),
            )
            for _ in range(count)
        ]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return sample(*self.rows[index])


@pytest.mark.parametrize(
    ("layout", "text"),
    [
        ("padded", PadCollate()),
        ("packed", PackCollate()),
        ("packed", PackCollate(128, shape="fixed")),
    ],
)
def test_every_batch_of_every_rank_has_a_picture_and_keeps_the_budget(
    layout: str, text: Any
) -> None:
    vision = collate(text)

    def work(rank: int, transport: Any) -> list[Any]:
        with odb_loader(
            Rows(83),
            token_budget=TokenBudget(128, extra={"patches": Limit(cost=num_patches, total=200)}),
            layout=layout,
            window=16,
            length=vision_length,
            collate=vision,
            filler=vision.idle,
            transport=transport,
        ) as loader:
            return list(loader)

    batches = [batch for rank in InProcessWorld(3).run(work) for batch in rank]
    positions = [view.position for batch in batches for view in batch.info.views]
    assert sorted(positions) == list(range(83))
    without = 0
    for batch in batches:
        assert len(batch.tensors["grid_thw"]) >= 1
        assert batch.tensors["input_ids"].numel() <= 128 or batch.info.num_samples == 1
        patches = len(batch.tensors["patches"])
        assert patches <= 200 or batch.info.num_samples == 1
        without += not batch.tensors["patches"].any()
    assert without > 0


def test_a_picture_that_fails_in_the_collate_names_its_rows_and_itself(tmp_path: Path) -> None:
    path = tmp_path / "broken.png"
    data = bytearray(as_bytes(noise(64, 96)))
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)
    broken = {**sample([1], 4), "pictures": [read_picture(path, SMALL)]}
    with (
        odb_loader(
            [broken], token_budget=64, collate=collate(), length=vision_length, world_size=1
        ) as loader,
        pytest.raises(PictureError, match=r"broken.png: the picture is damaged") as caught,
    ):
        list(loader)
    assert "dataset[i] for i in [0]" in "".join(caught.value.__notes__)


def test_pictures_that_do_not_decode_are_dropped_and_counted_where_that_is_asked_for() -> None:
    good, bad = as_bytes(noise(64, 96)), bytearray(as_bytes(noise(64, 96)))
    bad[len(bad) // 2] ^= 0xFF

    def encode(data: bytes) -> dict[str, Any]:
        picture = read_picture(data, SMALL, decode=True)
        return {**sample([1], 4), "pictures": [picture]}

    rows = [good, bytes(bad), good, b"no picture"]
    with odb_loader(
        rows, encode, token_budget=64, collate=collate(), on_error="skip", world_size=1
    ) as loader:
        assert sum(batch.info.num_samples for batch in loader) == 2
        dropped = loader.state_dict()["counters"]
        assert "2" in str(dropped)


def test_the_state_holds_positions_only(tmp_path: Path) -> None:
    path = tmp_path / "drawn.png"
    noise(64, 96).save(path)
    picture = Picture(path, PICTURES[1].grid)
    rows = [{**sample([1], 4 + n % 40), "pictures": [picture]} for n in range(300)]
    options: dict[str, Any] = {"window": 64, "prefetch": 0, "length": vision_length}
    with odb_loader(rows, token_budget=64, world_size=1, collate=collate(), **options) as loader:
        next(iter(loader))
        state = loader.state_dict()
        assert len(loader.align.source.window) > 32
        assert len(pickle.dumps(state)) < 4000
        assert len(pickle.dumps(picture)) < 300


def test_a_resume_decodes_no_picture_that_was_delivered(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[Any] = []

    def counting(picture: Picture, geometry: Geometry) -> Any:
        decoded.append(picture.source)
        return patches_of(picture, geometry)

    monkeypatch.setattr("odb_nodes.vision.collate.patches_of", counting)
    rows = [
        {**sample([1], n), "pictures": [Picture(as_bytes(noise(64, 96, n)), PICTURES[1].grid)]}
        for n in range(3, 30)
    ]

    def make() -> Any:
        options: dict[str, Any] = {"window": 8, "prefetch": 0, "length": vision_length}
        return odb_loader(rows, token_budget=64, world_size=1, collate=collate(), **options)

    with make() as loader:
        batches = iter(loader)
        for _ in range(4):
            next(batches)
        state, first = loader.state_dict(), set(decoded)
    decoded.clear()
    with make() as loader:
        loader.load_state_dict(state)
        rest = sum(batch.info.num_samples for batch in loader)
    assert not first & set(decoded)
    assert len(first) + len(decoded) == len(rows) == len(first) + rest


class Stream:
    def __iter__(self) -> Any:
        return iter([sample([1], 4)] * 40)


def test_streams_of_rows_with_pictures_are_refused_at_the_first_batch() -> None:
    """Their state would have to hold the samples themselves, so the pictures."""
    options: dict[str, Any] = {"window": 8, "prefetch": 0, "collate": collate(), "world_size": 1}
    with (
        odb_loader(Stream(), token_budget=64, **options) as loader,
        pytest.raises(SampleError, match="is a Picture, which a checkpoint cannot hold"),
    ):
        next(iter(loader))
