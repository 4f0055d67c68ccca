"""Documents a second from text to batches of 256 × 256 token ids on two devices, by a tokenizer in pure Python.

20,000 documents of 50 to 400 words are cut from this repository's own pages. The tokenizer splits text by a regular
expression, looks each word up, and cuts those it does not know into the longest pieces that it knows; that takes some
hundred µs a document, all of it with the interpreter's lock held. So threads cannot help, and processes can.

All contenders use the same dataset, whose `__getitem__` tokenizes; tf.data calls it by `numpy_function`.

The real measurement, about 10 minutes on an idle machine:
    python benchmarks/loading_text.py --rounds 7 --seconds 4
A short one, to see that everything works:
    nice -n 5 python benchmarks/loading_text.py --rounds 1 --seconds 1 --documents 2000
"""

from __future__ import annotations

import argparse
import json
import os
import re
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from loading import Batches, compare
from loading_contenders import (
    build,
    close,
    grain_processes,
    grain_threads,
    hostmesh,
    tf_batches,
    thread_pool,
    torch_loader,
)

BATCH, LENGTH = 256, 256
SHORTEST, LONGEST = 50, 400  # words of a document
KNOWN = 500  # whole words in the vocabulary; the others are cut into pieces
MAX_PIECE = 6
WARM_UP, SETTLING = 30, 1.5
WORDS = re.compile(r"\w+|[^\w\s]")
REPO = Path(__file__).parent.parent


def read_words() -> list[str]:
    pages = [*sorted((REPO / "docs").rglob("*.md")), REPO / "README.md", REPO / "CHANGELOG.md"]
    return " ".join(page.read_text() for page in pages).split()


def make_documents(count: int) -> list[str]:
    words, random = read_words(), np.random.default_rng(0)
    lengths = random.integers(SHORTEST, LONGEST + 1, count)
    starts = random.integers(0, len(words) - LONGEST, count)
    return [" ".join(words[start : start + length]) for start, length in zip(starts, lengths, strict=True)]


def make_vocabulary() -> dict[str, int]:
    """The most frequent words, all pieces of others that come often, and all single letters."""
    words = Counter(word for text in read_words() for word in WORDS.findall(text.lower()))
    pieces: Counter[str] = Counter()
    for word, times in words.items():
        for size in range(2, MAX_PIECE + 1):
            for start in range(len(word) - size + 1):
                pieces[word[start : start + size]] += times
    letters = sorted({letter for word in words for letter in word})
    chosen = [word for word, _ in words.most_common(KNOWN)] + [piece for piece, _ in pieces.most_common(4 * KNOWN)]
    return {piece: n for n, piece in enumerate(dict.fromkeys(letters + chosen), start=2)}


class Tokenized:
    """Records of 256 ids: 0 fills up, 1 is a letter that is not known."""

    def __init__(self, documents: list[str], vocabulary: dict[str, int]) -> None:
        self.documents, self.vocabulary = documents, vocabulary

    def __len__(self) -> int:
        return len(self.documents)

    def __getitem__(self, index: int) -> dict[str, Any]:
        ids = self.tokenize(self.documents[index])[:LENGTH]
        tokens = np.zeros(LENGTH, np.int32)
        tokens[: len(ids)] = ids
        return {"tokens": tokens}

    def tokenize(self, text: str) -> list[int]:
        ids: list[int] = []
        known = self.vocabulary
        for word in WORDS.findall(text.lower()):
            if (whole := known.get(word)) is not None:
                ids.append(whole)
            else:
                ids += self.cut(word)
        return ids

    def cut(self, word: str) -> list[int]:
        """The longest piece that is known, from left to right."""
        ids, start = [], 0
        while start < len(word):
            for size in range(min(MAX_PIECE, len(word) - start), 0, -1):
                if (found := self.vocabulary.get(word[start : start + size])) is not None:
                    break
            ids.append(found or 1)
            start += size
        return ids


def tf_data(dataset: Tokenized) -> Batches:
    import tensorflow as tf

    def tokenize(index: Any) -> Any:
        tokens = tf.numpy_function(lambda n: dataset[int(n)]["tokens"], [index], tf.int32, stateful=False)
        return {"tokens": tf.ensure_shape(tokens, (LENGTH,))}

    rows = tf.data.Dataset.range(len(dataset)).shuffle(len(dataset), seed=0).repeat()
    return tf_batches(rows.map(tokenize, num_parallel_calls=tf.data.AUTOTUNE), BATCH)


def compare_text(dataset: Tokenized, rounds: int, seconds: float) -> dict[str, list[float]]:
    ours = partial(hostmesh, dataset, BATCH)
    contenders = build(
        {
            "hostmesh": ours,
            "hostmesh, workers=2": partial(ours, workers=2),
            "hostmesh, workers=0": partial(ours, workers=0),
            "hostmesh, processes=2": partial(ours, processes=2),
            "PyTorch, 2 workers": partial(torch_loader, dataset, BATCH, 2),
            "PyTorch, 0 workers": partial(torch_loader, dataset, BATCH, 0),
            "Grain, 2 threads": partial(grain_threads, dataset, BATCH),
            "Grain, 2 processes": partial(grain_processes, dataset, BATCH),
            "tf.data, numpy_function": partial(tf_data, dataset),
            "2 bare threads, no device": partial(thread_pool, dataset, BATCH),
        }
    )
    turn = {"batch": BATCH, "warm_up": WARM_UP, "settling": SETTLING}
    found = compare("Text, tokenized in Python", contenders, rounds, seconds, unit=1, **turn)
    close(contenders)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each turn")
    parser.add_argument("--documents", type=int, default=20_000)
    parser.add_argument("--json", type=Path, help="also write all speeds to this file")
    options = parser.parse_args()
    import hostmesh

    hostmesh.keep_freed_memory()
    dataset = Tokenized(make_documents(options.documents), make_vocabulary())
    tried = range(0, len(dataset), max(1, len(dataset) // 500))
    began = time.process_time()
    for index in tried:
        dataset[index]
    took = (time.process_time() - began) / len(tried) * 1e6
    print(f"{len(dataset)} documents, {took:.0f} µs of a core each; load {os.getloadavg()[0]:.1f}", flush=True)
    found = compare_text(dataset, options.rounds, options.seconds)
    print(f"load at the end {os.getloadavg()[0]:.1f}")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
