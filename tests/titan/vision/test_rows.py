"""Pictures in rows: every usual way to name them gives the same sample, the rest is refused."""

import base64
import io
import json
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
from PIL import Image

from odb_nodes.vision import Geometry, Picture, patches_of
from tests.titan.vision.conftest import chat_with
from titan_integration.data.checks.examine import Examiner
from titan_integration.data.encoding.encoder import Encoder, Encoding, TooLongError
from titan_integration.data.encoding.tokenizer import ChatTokenizer
from titan_integration.data.formats.document import Reading, RowError
from titan_integration.data.inputs.open import Inputs
from titan_integration.data.pictures.marks import MARK
from titan_integration.data.pictures.vision import Vision
from titan_integration.data.sources.cache import Cache

VISION = Vision(
    geometry=Geometry(min_pixels=1_024, max_pixels=16_384),
    image_token="<|image_pad|>",
    video_token="<|video_pad|>",
    start_token="<|vision_start|>",
    end_token="<|vision_end|>",
)
SIZES = {"a.png": (64, 96), "b.png": (96, 64)}  # height and width: 2 x 3 and 3 x 2 tokens
MakeEncoder = Callable[..., Encoder]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``a.png`` and ``b.png``."""
    folder = tmp_path_factory.mktemp("named")
    for name, (height, width) in SIZES.items():
        pixels = np.arange(height * width * 3).reshape(height, width, 3) % 251
        Image.fromarray(pixels.astype(np.uint8)).save(folder / name)
    return folder


@pytest.fixture(scope="module")
def make_encoder(vision_tokenizer: Path) -> MakeEncoder:
    tokenizer = ChatTokenizer(tokenizer_path=str(vision_tokenizer))

    def make(**changes: Any) -> Encoder:
        reading = Reading(pictures=changes.get("vision", VISION) is not None)
        given = {"reading": reading, "max_len": 200, "vision": VISION, **changes}
        return Encoder(tokenizer, Encoding(**given))

    return make


@pytest.fixture(scope="module")
def encoder(make_encoder: MakeEncoder) -> Encoder:
    return make_encoder()


def table_of(path: Path) -> Any:
    cache = Cache(folder=path.parent / "cache")
    return Inputs(paths=[str(path)], cache=cache, pictures=True).open()


def written(folder: Path, *rows: Any) -> Any:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return table_of(path)


def sample_of(encoder: Encoder, table: Any, index: int = 0) -> dict[str, Any]:
    sample = encoder((table[index], 0))
    assert sample is not None
    return sample


def same_pixels(one: Picture, other: Picture) -> None:
    left, right = (patches_of(p, VISION.geometry) for p in (one, other))
    np.testing.assert_array_equal(left, right)


def data_url(path: Path) -> str:
    return f"data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}"


def turns(content: Any, answer: Any = "two") -> list[dict[str, Any]]:
    return [{"role": "user", "content": content}, {"role": "assistant", "content": answer}]


TEXT = {"type": "text", "text": "what?"}
WAYS: dict[str, Callable[[Path], Any]] = {
    "llamafactory": lambda f: chat_with(["a.png", "b.png"], "two", "what?"),
    "sharegpt": lambda f: {
        "conversations": [
            {"from": "human", "value": "<image><image>what?"},
            {"from": "gpt", "value": "two"},
        ],
        "images": ["a.png", "b.png"],
    },
    "openai parts": lambda f: turns(
        [
            {"type": "image_url", "image_url": {"url": "a.png"}},
            {"type": "image_url", "image_url": {"url": (f / "b.png").as_uri()}},
            TEXT,
        ]
    ),
    "data urls": lambda f: turns(
        [
            {"type": "image_url", "image_url": {"url": data_url(f / "a.png")}},
            {"type": "image_url", "image_url": {"url": data_url(f / "b.png")}},
            TEXT,
        ]
    ),
    "hugging face parts": lambda f: {
        "messages": turns([{"type": "image"}, {"type": "image"}, TEXT]),
        "images": ["a.png", "b.png"],
    },
    "qwen parts": lambda f: turns(
        [{"type": "image", "image": "a.png"}, {"type": "image", "image": "b.png"}, TEXT]
    ),
    "parts and placeholders": lambda f: turns(
        [
            {"type": "image_url", "value": "a.png"},
            {"type": "image_url", "value": "b.png"},
            {"type": "text", "text": "<IMG_CONTEXT><IMG_CONTEXT>what?"},
        ]
    ),
    "question and answer": lambda f: {
        "question": "what?",
        "answer": "two",
        "images": [{"path": "a.png"}, {"path": "b.png"}],
    },
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_name_pictures_gives_the_same_sample(
    folder: Path, encoder: Encoder, way: str
) -> None:
    expected = sample_of(encoder, written(folder, WAYS["llamafactory"](folder)))
    found = sample_of(encoder, written(folder, WAYS[way](folder)))
    assert found["input_ids"].tolist() == expected["input_ids"].tolist()
    assert found["labels"].tolist() == expected["labels"].tolist()
    for one, other in zip(found["pictures"], expected["pictures"], strict=True):
        assert one.grid == other.grid
        same_pixels(one, other)


def test_a_picture_is_as_many_tokens_as_it_has_and_none_carries_loss(
    folder: Path, encoder: Encoder
) -> None:
    sample = sample_of(encoder, written(folder, chat_with(["a.png"], "two")))
    assert (sample["input_ids"] == encoder.image_id).sum() == 6
    text = encoder.decode(sample["input_ids"].tolist())
    assert "<|vision_start|>" + 6 * "<|image_pad|>" + "<|vision_end|>what is it?" in text
    learned = encoder.decode([token for token in sample["labels"].tolist() if token >= 0])
    assert learned == "two<|end|>"


def test_a_row_without_pictures_is_a_text(folder: Path, encoder: Encoder) -> None:
    sample = sample_of(encoder, written(folder, chat_with([], "two")))
    assert sample["pictures"] == []
    plain = sample_of(encoder, written(folder, {"text": "only words"}))
    assert plain["pictures"] == []


def test_the_template_says_what_stands_around_a_picture(
    folder: Path, make_encoder: MakeEncoder, tmp_path: Path
) -> None:
    template = (
        "{% for m in messages %}<|{{ m.role }}|>{% if m.content is string %}{{ m.content }}"
        "{% else %}{% for p in m.content %}{% if p.type == 'image' %}[see <|image_pad|>]"
        "{% else %}{{ p.text }}{% endif %}{% endfor %}{% endif %}<|end|>{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )
    (tmp_path / "own.jinja").write_text(template)
    encoder = make_encoder(chat_template=str(tmp_path / "own.jinja"))
    sample = sample_of(encoder, written(folder, chat_with(["a.png"], "two")))
    text = encoder.decode(sample["input_ids"].tolist())
    assert "[see " + 6 * "<|image_pad|>" + "]what is it?" in text


def test_bytes_in_columns_are_read_when_they_are_decoded(folder: Path, encoder: Encoder) -> None:
    rows = {
        "messages": [turns("<image>what?")],
        "images": [[str(folder / "a.png")]],
    }
    columns = datasets.Dataset.from_dict(rows).cast_column(
        "images", datasets.List(datasets.Image())
    )
    saved, parquet = folder / "saved", folder / "rows.parquet"
    columns.save_to_disk(str(saved))
    columns.to_parquet(str(parquet))
    expected = sample_of(encoder, written(folder, chat_with(["a.png"], "two", "what?")))
    for path in (saved, parquet):
        found = sample_of(encoder, table_of(path))
        assert found["input_ids"].tolist() == expected["input_ids"].tolist()
        [picture] = found["pictures"]
        assert not isinstance(picture.source, bytes)
        assert "picture 1 of" in str(picture.source) or Path(str(picture.source)).is_file()
        np.testing.assert_array_equal(
            patches_of(picture, VISION.geometry),
            patches_of(expected["pictures"][0], VISION.geometry),
        )


def test_a_tar_of_pictures_and_texts_has_a_row_per_name(folder: Path, encoder: Encoder) -> None:
    path = folder / "shard.tar"
    members = {
        "0001.png": (folder / "a.png").read_bytes(),
        "0001.txt": b"two",
        "0002.png": (folder / "b.png").read_bytes(),
        "0002.json": json.dumps(chat_with([], "three", "<image>how many?")).encode(),
    }
    with tarfile.open(path, "w") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    table = table_of(path)
    assert len(table) == 2
    caption, chat = (sample_of(encoder, table, i) for i in range(2))
    assert [p.grid for p in caption["pictures"]] == [(1, 4, 6)]
    assert encoder.decode([t for t in caption["labels"].tolist() if t >= 0]) == "two<|end|>"
    assert [p.grid for p in chat["pictures"]] == [(1, 6, 4)]
    expected = sample_of(encoder, written(folder, chat_with(["a.png"], "two")))
    same_pixels(caption["pictures"][0], expected["pictures"][0])
    assert table.where(1) == f"{path} 0002"


def test_paths_are_relative_to_a_folder_of_their_own(
    folder: Path, make_encoder: MakeEncoder, tmp_path: Path
) -> None:
    encoder = make_encoder(vision=replace(VISION, image_dir=str(folder)))
    assert sample_of(encoder, written(tmp_path, chat_with(["a.png"], "two")))["pictures"]


def damaged(folder: Path) -> dict[str, bytes]:
    whole = (folder / "a.png").read_bytes()
    wide = io.BytesIO()
    Image.new("RGB", (4_100, 20)).save(wide, "PNG")
    film = io.BytesIO()
    frames = [Image.new("RGB", (40, 40), (i, 0, 0)) for i in range(3)]
    frames[0].save(film, "GIF", save_all=True, append_images=frames[1:])
    return {
        "cut.png": whole[: len(whole) // 2],
        "text.png": b"no picture at all",
        "empty.png": b"",
        "wide.png": wide.getvalue(),
        "film.gif": film.getvalue(),
    }


REFUSED = {
    "fewer places": ({**chat_with(["a.png"], "x"), "images": ["a.png", "b.png"]}, "1 places"),
    "more places": ({**chat_with(["a.png", "a.png"], "x"), "images": ["a.png"]}, "1 pictures"),
    "no places": ({"messages": turns("what?"), "images": ["a.png"]}, "0 places"),
    "a word": ({"messages": turns("use <image> tags")}, "if it is only a word"),
    "a token in words": (
        chat_with(["a.png"], "x", "what is <|image_pad|>?"),
        "the words of a message hold",
    ),
    "an answer": (turns("what?", [{"type": "image", "image": "a.png"}]), "an answer has a picture"),
    "a place in an answer": (
        {"messages": turns("what?", "<image>"), "images": ["a.png"]},
        "1 more are in answers",
    ),
    "missing": (chat_with(["c.png"], "x"), "there is no picture"),
    "remote": (chat_with(["https://x.org/a.png"], "x"), "download it"),
    "truncated": (chat_with(["cut.png"], "x"), "truncated"),
    "no image": (chat_with(["text.png"], "x"), "not a picture"),
    "empty": (chat_with(["empty.png"], "x"), "empty"),
    "aspect": (chat_with(["wide.png"], "x"), "200 times"),
    "animation": (chat_with(["film.gif"], "x"), "animation"),
    "videos": ({**chat_with([], "x"), "videos": ["a.mp4"]}, "the row has videos"),
    "a film part": (turns([{"type": "video", "video": "a.mp4"}, TEXT]), "the row has videos"),
    "broken data url": (chat_with(["data:image/png;base64,%%"], "x"), "base64"),
    "a number": (chat_with([5], "x"), "must be a path, a URL or bytes"),  # type: ignore[list-item]
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_wrong_is_said_in_one_line_with_file_and_row(
    folder: Path, encoder: Encoder, case: str
) -> None:
    row, said = REFUSED[case]
    for name, content in damaged(folder).items():
        (folder / name).write_bytes(content)
    table = written(folder, chat_with([], "fine"), row)
    found = Examiner(table, encoder, skip_errors=False)([0, 1])
    assert found.first_error is not None
    number, message = found.first_error
    assert number == 1
    assert f"{folder / 'rows.jsonl'}:2: " in message
    assert said in message
    assert "--data.odb.on_error skip" in message
    assert "\n" not in message
    skipping = Examiner(table, encoder, skip_errors=True)([0, 1])
    assert skipping.first_error is None
    [(reason, count)] = skipping.report.dropped.items()
    assert count == 1
    assert str(folder) not in reason
    assert skipping.report.samples == 1


def test_a_bomb_is_found_by_its_header(
    folder: Path, encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1_000)
    table = written(folder, chat_with(["a.png"], "two"))
    with pytest.raises(RowError, match="bomb"):
        encoder.plan(table[0])


def test_a_mark_in_words_is_no_picture(folder: Path, encoder: Encoder) -> None:
    table = written(folder, {"messages": turns(f"{MARK}0{MARK} what?")})
    with pytest.raises(RowError, match="which is no character"):
        encoder.plan(table[0])


def test_a_model_of_texts_says_that_it_takes_no_pictures(
    folder: Path, make_encoder: MakeEncoder
) -> None:
    encoder = make_encoder(vision=None)
    for row in (chat_with(["a.png"], "two"), turns([{"type": "image", "image": "a.png"}, TEXT])):
        with pytest.raises(RowError, match="text only"):
            encoder.plan(written(folder, row)[0])


def test_a_sample_is_never_cut_through_a_picture(folder: Path, make_encoder: MakeEncoder) -> None:
    first, second = turns("<image>what?", "one"), turns("and <image>?", "two")
    table = written(folder, {"messages": first + second, "images": ["a.png", "b.png"]})
    whole = make_encoder()
    ids = sample_of(whole, table)["input_ids"].tolist()
    places = [i for i, token in enumerate(ids) if token == whole.image_id]
    for most in range(places[5] + 12, len(ids)):
        cut = sample_of(make_encoder(max_len=most, too_long="truncate"), table)
        number = (cut["input_ids"] == whole.image_id).sum()
        assert number == 6 * len(cut["pictures"])
        assert len(cut["input_ids"]) <= most
        assert len(cut["pictures"]) == (1 if most < places[11] + 1 else 2)
        assert most - len(cut["input_ids"]) <= (8 if len(cut["pictures"]) == 1 else 0)
    with pytest.raises(TooLongError, match=r"12 of 2 pictures: lower --data\.max_pixels"):
        sample_of(make_encoder(max_len=20), table)


def test_pictures_and_patches_are_counted(folder: Path, encoder: Encoder) -> None:
    rows = [chat_with(["a.png", "b.png"], "two"), chat_with([], "none")]
    report = Examiner(written(folder, *rows), encoder, skip_errors=False)([0, 1]).report
    assert (report.samples, report.pictures, report.patches) == (2, 2, 48)
    assert report.merged(report).patches == 96
    assert type(report).from_dict(report.to_dict()) == report
