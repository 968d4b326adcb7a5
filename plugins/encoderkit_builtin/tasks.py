"""The built-in tasks."""

from __future__ import annotations

import math
import platform
from collections.abc import Iterator

import torch
from torch import Generator, Tensor

from encoderkit.data import Batch, InputError, Task, content_hash, corrupt, epoch_rows
from encoderkit_builtin.catalogue_tasks import MLMPydocOptions, SortOptions

_EVAL_BATCH = 64  # sequences; a fixed number, so that an evaluation's sums keep their order


class Sort(Task):
    """Give back T random symbols of S in ascending order; loss in nats per symbol.

    y = sorted(x), all positions scored. The trivial loss is ln S; `position` is the loss of a model
    that knows each place's own distribution, a binomial tail, and nothing of the input.
    """

    opts: SortOptions

    def __init__(self, opts: SortOptions, seed: int) -> None:
        super().__init__(opts, seed)
        self.vocab = self.outputs = opts.symbols
        self.trivial_loss = math.log(opts.symbols)
        self.baselines = {
            "uniform": self.trivial_loss,
            "position": _order_entropy(opts.length, opts.symbols),
        }
        counts = [_EVAL_BATCH] * (opts.eval_sequences // _EVAL_BATCH)
        counts += [rest] if (rest := opts.eval_sequences % _EVAL_BATCH) else []
        self._held_out = [self._draw(n, self.draws("eval", k)) for k, n in enumerate(counts)]
        self.data_hash = content_hash(*(bytes_of(batch.tokens) for batch in self._held_out))

    def batch(self, k: int, size: int) -> Batch:
        """Return training batch k of the endless stream."""
        return self._draw(size, self.draws("train", k))

    def evaluation(self) -> Iterator[Batch]:
        """Yield the evaluation's sequences, drawn once with keys of their own."""
        return iter(self._held_out)

    def _draw(self, size: int, draws: Generator) -> Batch:
        shape = (size, self.opts.length)
        rows = torch.randint(self.opts.symbols, shape, generator=draws)
        lengths = [self.opts.length] * size
        return Batch(rows.flatten(), lengths, None, rows.sort(1).values.flatten())  # (B*T,)


class MLMPydoc(Task):
    """Masked language modelling on the bytes of `pydoc_data.topics`; loss in nats per hidden byte.

    The last tenth of the text is held out, and a training paragraph that shares a line with it is
    left out. The trivial loss is the cross entropy of the training text's byte frequencies on the
    evaluation's targets. Each CPython version has a text of its own: see `data_hash`.
    Errors: InputError when this Python lacks the text, or when it is shorter than a window.
    """

    opts: MLMPydocOptions

    def __init__(self, opts: MLMPydocOptions, seed: int) -> None:
        super().__init__(opts, seed)
        self.vocab, self.outputs, self._blank = 257, 256, 256
        text = read_topics()
        self.data_hash = content_hash(text.encode())
        train, held_out = split_text(text)
        self.rows = windows(train, opts.length)
        self._held_out = list(self._evaluation(windows(held_out, opts.length)))
        self._rate_baselines()

    def batch(self, k: int, size: int) -> Batch:
        """Return training batch k: windows in an order new in each epoch, hidden bytes new in k."""
        rows = self.rows[epoch_rows(self.seed, k, size, len(self.rows))]
        return self._hide(rows, self.draws("train", k))

    def evaluation(self) -> Iterator[Batch]:
        """Yield the held-out windows, hidden once with keys of their own."""
        return iter(self._held_out)

    def _evaluation(self, rows: Tensor) -> Iterator[Batch]:
        for k, first in enumerate(range(0, len(rows), _EVAL_BATCH)):
            yield self._hide(rows[first : first + _EVAL_BATCH], self.draws("eval", k))

    def _hide(self, rows: Tensor, draws: Generator) -> Batch:
        hidden, index = corrupt(rows, self.opts.rate, self.outputs, self._blank, draws)
        lengths = [self.opts.length] * len(rows)
        return Batch(hidden.flatten(), lengths, index, rows.flatten()[index])  # (B*T,), (M,)

    def _rate_baselines(self) -> None:
        # One more of each byte, so that a byte that training never saw has a finite loss.
        counts = torch.bincount(self.rows.flatten(), minlength=self.outputs).double() + 1
        targets = torch.cat([batch.targets for batch in self._held_out])
        unigram = (counts / counts.sum()).log()[targets]
        self.trivial_loss = -float(unigram.mean())
        self.baselines = {
            "unigram": self.trivial_loss,
            "majority_accuracy": float((targets == counts.argmax()).double().mean()),
        }


def read_topics() -> str:
    """Return the text of `pydoc_data.topics`, its topics in alphabetical order.

    Errors: InputError when this Python lacks it.
    """
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        raise InputError(
            f"task=mlm_pydoc: this Python ({platform.python_version()}) comes without its own "
            f"documentation, pydoc_data.topics ({error}). Use a full CPython, or task=sort."
        ) from error
    return "\n\n".join(topics[name] for name in sorted(topics))


def split_text(text: str) -> tuple[str, str]:
    """Return (training, held-out) text: the last tenth, by paragraphs, is held out.

    The topics quote each other, so a training paragraph goes when it has a line of 24 characters
    or more in common with the held-out text; 18 % of that could be looked up in training else.
    """
    paragraphs = text.split("\n\n")
    size, cut = 0, 0
    while size < 0.9 * len(text):
        size += len(paragraphs[cut]) + 2
        cut += 1
    held_out = paragraphs[cut:]
    seen = {line for paragraph in held_out for line in _lines(paragraph)}
    train = [paragraph for paragraph in paragraphs[:cut] if seen.isdisjoint(_lines(paragraph))]
    return "\n\n".join(train), "\n\n".join(held_out)


def windows(text: str, length: int) -> Tensor:
    """Return the bytes of a text, cut into rows; what is left over at the end is dropped.

    Shapes: -> (rows, length), int64
    Errors: InputError when the text is shorter than one row.
    """
    data = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8).long()
    if len(data) < length:
        raise InputError(
            f"task.length={length}: must be at most {len(data)}, the bytes of the held-out text."
        )
    return data[: len(data) // length * length].view(-1, length)  # (rows, length)


def bytes_of(tokens: Tensor) -> bytes:
    """Return the bytes of int64 tokens, the same on every machine."""
    return bytes(tokens.numpy().astype("<i8").tobytes())


def _lines(paragraph: str) -> list[str]:
    return [line.strip() for line in paragraph.split("\n") if len(line.strip()) >= 24]


def _order_entropy(length: int, symbols: int) -> float:
    """Return the mean over places i of the entropy of the i-th smallest of `length` symbols.

    P(y_i < v) = P(Binomial(length, v / symbols) > i)
    """
    n = torch.arange(length + 1).double()
    below = torch.arange(symbols + 1).double()[:, None] / symbols  # (S+1, 1)
    choose = math.lgamma(length + 1) - torch.lgamma(n + 1) - torch.lgamma(length - n + 1)
    exactly = choose + torch.xlogy(n, below) + torch.xlogy(length - n, 1 - below)  # (S+1, T+1)
    tail = exactly.exp().flip(1).cumsum(1).flip(1)[:, 1:]  # (S+1, T): P(Binomial > i)
    chance = tail.diff(dim=0).clamp_min(0)  # (S, T)
    return float(-torch.special.xlogy(chance, chance).sum(0).mean())
