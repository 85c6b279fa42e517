"""The pictures of a sample: their headers are read, and their tokens stand in its ids."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from odb_nodes.vision import Picture, PictureError, picture_size
from titan_integration.data.encoding.answers import Rendered
from titan_integration.data.encoding.chat_template import ChatTemplate
from titan_integration.data.encoding.tokenize import Encoded
from titan_integration.data.formats.document import BadPicture
from titan_integration.data.pictures.marks import numbers_in, replaced
from titan_integration.data.pictures.problem import PictureProblem
from titan_integration.data.pictures.references import source_of
from titan_integration.data.pictures.vision import Vision, cut_before_picture, expanded
from titan_integration.errors import UserError


class PictureTokens:
    """Puts pictures into rendered texts, and their tokens into ids.

    Args:
        vision: How the model takes pictures.
        tokenizer: Of the model.

    Raises:
        UserError: The tokenizer lacks a token that stands for pictures.
    """

    def __init__(self, vision: Vision, tokenizer: Tokenizer) -> None:
        self._vision = vision
        self._image_dir = None if vision.image_dir is None else Path(vision.image_dir)
        image_id = tokenizer.token_to_id(vision.image_token)
        if image_id is None:
            raise UserError(
                f"the tokenizer has no token {vision.image_token!r}, which stands for a picture; "
                "set --hf_assets_path to the folder of the model's own tokenizer"
            )
        self.image_id: int = image_id
        self._words: dict[int, str] = {}

    def check_words(self, names: set[str]) -> None:
        """Raise BadPicture where a row's own words hold the token of a picture or film."""
        for token in (self._vision.image_token, self._vision.video_token):
            if token in names:
                raise BadPicture(
                    "the token of a picture stands in words",
                    f"the words of a message hold {token}, which stands for a picture; write "
                    "<image> where a picture belongs, and the words otherwise",
                )

    def placed(
        self, part: Rendered, references: Sequence[Any], row: Any, template: ChatTemplate
    ) -> Rendered:
        """The text with one placeholder per picture in it, and these pictures.

        Raises:
            BadPicture: One of them is not there, or is no picture.
        """
        pictures = tuple(self._picture(references[i], row) for i in numbers_in(part.text))
        text, spans = replaced(part.text, part.spans, self._word(template))
        return replace(part, text=text, spans=spans, pictures=pictures)

    def expanded(self, sample: Encoded, pictures: tuple[Picture, ...]) -> Encoded:
        """The sample with all tokens of its pictures.

        Raises:
            BadPicture: Its ids hold the token of a picture elsewhere, too.
        """
        try:
            ids, ranges = expanded(
                sample.ids, sample.ranges, pictures, self.image_id, self._vision.geometry
            )
        except PictureProblem as problem:
            raise BadPicture(problem.reason, str(problem)) from problem
        return replace(sample, ids=ids, ranges=ranges, pictures=pictures)

    def cut(self, ids: np.ndarray, most: int, pictures: Sequence[Picture]) -> tuple[int, int]:
        """``most`` ids at most, without a part of a picture; and the number of pictures left."""
        return cut_before_picture(ids, most, pictures, self._vision, self.image_id)

    def _picture(self, reference: Any, row: Any) -> Picture:
        try:
            source = source_of(reference, row, self._image_dir)
            height, width = picture_size(source)
            return Picture(source, self._vision.geometry.grid(height, width))
        except (PictureProblem, PictureError) as problem:
            raise BadPicture(problem.reason, str(problem)) from problem

    def _word(self, template: ChatTemplate) -> str:
        """As the template writes a picture, else between the model's own tokens."""
        if id(template) not in self._words:
            word = template.picture_word(self._vision.image_token)
            self._words[id(template)] = word or self._vision.word
        return self._words[id(template)]
