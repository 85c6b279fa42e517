"""What a row costs before it is a batch: ``python -m tools.bench.encoding_cost FILE... OPTIONS``.

Prints, for each file, the time per sample of the tokenizer alone on the very same texts, of the
whole encoder (format, template, answers, tokens, labels), and their ratio; and how much faster two
worker processes encode than one. Texts are taken in turn by both, so that neither has warmer
caches or a quieter machine than the other.
"""

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

from odb_nodes.nodes.sample_mapper import SampleMapper
from odb_nodes.nodes.sampler_view import SamplerView
from titan_integration.data.encoding.answers import Rendered
from titan_integration.data.encoding.encoder import Encoder, Encoding
from titan_integration.data.encoding.tokenizer import ChatTokenizer
from titan_integration.data.formats.document import Reading, RowError
from titan_integration.data.inputs.open import Inputs

Item = tuple[Any, int]
ROUNDS = 5


def main() -> None:
    """Measure as ``sys.argv`` says."""
    arguments = _arguments()
    reading = Reading(preference="chosen")
    encoding = Encoding(max_len=2**20, reading=reading, chat_template=arguments.chat_template)
    encoder = Encoder(ChatTokenizer(tokenizer_path=arguments.hf_assets_path), encoding)
    for file in arguments.files:
        items, texts = _samples(encoder, file, arguments.samples)
        tokenizer_s, encoder_s = _per_sample(encoder, items, texts)
        print(
            f"{Path(file).name}: {len(items)} samples, tokenizer {tokenizer_s * 1e6:.0f} us, "
            f"encoder {encoder_s * 1e6:.0f} us, ratio {encoder_s / tokenizer_s:.2f}"
        )
        if arguments.workers:
            one, two = (_workers_s(encoder, items, number) for number in (1, 2))
            print(
                f"  1 process {one:.2f} s, 2 processes {two:.2f} s, {one / two:.2f} times as fast"
            )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else None)
    parser.add_argument("files", nargs="+", help="files of rows")
    parser.add_argument("--hf_assets_path", required=True, help="folder of the tokenizer")
    parser.add_argument("--chat_template", help="a Jinja file; by default the tokenizer's own")
    parser.add_argument("--samples", type=int, default=200, help="of each file, evenly spread")
    parser.add_argument("--workers", action="store_true", help="also compare worker processes")
    return parser.parse_args()


def _samples(encoder: Encoder, file: str, most: int) -> tuple[list[Item], list[str]]:
    """Samples of a file as the encoder takes them, and their texts."""
    rows = Inputs(paths=[file]).open()
    items, texts = [], []
    for i in range(0, len(rows), max(1, len(rows) // most)):
        row = rows[i]
        try:
            parts = encoder.plan(row).parts
        except RowError:
            continue
        for number, part in enumerate(parts):
            text = part.text if isinstance(part, Rendered) else encoder.decode(part.ids.tolist())
            items.append((row, number))
            texts.append(text)
    step = max(1, len(items) // most)
    return items[::step], texts[::step]


def _per_sample(encoder: Encoder, items: list[Item], texts: list[str]) -> tuple[float, float]:
    """Median over rounds of the mean time per sample of tokenizer and encoder, in seconds."""
    tokenizer = encoder.tokenizer.tokenizer
    alone, whole = [], []
    for _ in range(ROUNDS):
        spent = [0.0, 0.0]
        for item, text in zip(items, texts, strict=True):
            start = time.perf_counter()
            tokenizer.encode_batch([text], add_special_tokens=False)
            middle = time.perf_counter()
            encoder(item)
            spent[0] += middle - start
            spent[1] += time.perf_counter() - middle
        alone.append(spent[0] / len(items))
        whole.append(spent[1] / len(items))
    return statistics.median(alone), statistics.median(whole)


def _workers_s(encoder: Encoder, items: list[Item], number: int) -> float:
    """Seconds that so many worker processes take to encode the items often enough to tell."""
    repeated = items * max(1, 4000 // len(items))
    view = SamplerView(len(repeated), rank=0, world_size=1, shuffle=False)
    mapper = SampleMapper(view, repeated, encoder, num_workers=number, method="process")
    mapper.reset()
    try:
        next(mapper)  # The processes have started.
        start = time.perf_counter()
        for _ in mapper:
            pass
        return time.perf_counter() - start
    finally:
        mapper.shutdown()


if __name__ == "__main__":
    main()
