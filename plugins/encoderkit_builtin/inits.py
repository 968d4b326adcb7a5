"""Inits: what linear maps and embeddings start with."""

from __future__ import annotations

import torch
from torch import Tensor

from encoderkit.nn import Init
from encoderkit_builtin.catalogue import BertOptions


class Xavier(Init):
    """Keeps the variance of activations and gradients about even (Glorot and Bengio 2010).

    weights N(0, 2 / (fan_in + fan_out)), biases 0, embeddings N(0, 1)
    """

    def weight(self, t: Tensor, generator: torch.Generator) -> None:
        """Fill the weight of a linear map."""
        t.normal_(0, (2 / sum(t.shape)) ** 0.5, generator=generator)

    def bias(self, t: Tensor, fan_in: int, generator: torch.Generator) -> None:
        """Fill the bias of a linear map."""
        t.zero_()

    def embedding(self, t: Tensor, generator: torch.Generator) -> None:
        """Fill a table of embeddings."""
        t.normal_(0, 1, generator=generator)


class Small(Init):
    """Small init: the deviation of a d to 4 d map under Xavier, for every map (arXiv 1910.05895).

    weights N(0, 2 / (5 d)) with d = fan_in, biases 0, embeddings N(0, 1)

    The paper's d is the model's: a map from 4 d back to d starts at half its deviation here.
    """

    def weight(self, t: Tensor, generator: torch.Generator) -> None:
        """Fill the weight of a linear map."""
        t.normal_(0, (2 / (5 * t.shape[1])) ** 0.5, generator=generator)

    def bias(self, t: Tensor, fan_in: int, generator: torch.Generator) -> None:
        """Fill the bias of a linear map."""
        t.zero_()

    def embedding(self, t: Tensor, generator: torch.Generator) -> None:
        """Fill a table of embeddings."""
        t.normal_(0, 1, generator=generator)


class DeepNorm(Xavier):
    """Xavier, and the weights of branches times (8 L)^(-1/4), all but q and k (arXiv 2203.00555).

    placement=deepnorm brings this gain itself; here it is for other placements.
    """

    def branch_gain(self, n_layers: int) -> float:
        """Return beta of an encoder."""
        return float((8 * n_layers) ** -0.25)


class Bert(Init):
    """BERT's own: one small deviation for every map and table, whatever its width.

    weights N(0, std^2), biases 0, embeddings N(0, std^2) (arXiv 1810.04805; it cuts off at 2 std)
    """

    def __init__(self, opts: BertOptions) -> None:
        super().__init__(opts)
        self.std = opts.std

    def weight(self, t: Tensor, generator: torch.Generator) -> None:
        """Fill the weight of a linear map."""
        t.normal_(0, self.std, generator=generator)

    def bias(self, t: Tensor, fan_in: int, generator: torch.Generator) -> None:
        """Fill the bias of a linear map."""
        t.zero_()

    def embedding(self, t: Tensor, generator: torch.Generator) -> None:
        """Fill a table of embeddings."""
        t.normal_(0, self.std, generator=generator)


class Torch(Init):
    """What torch draws when nobody says anything.

    weights and biases U(-b, b) with b = fan_in^-1/2, embeddings N(0, 1)
    """

    def weight(self, t: Tensor, generator: torch.Generator) -> None:
        """Fill the weight of a linear map."""
        bound = t.shape[1] ** -0.5
        t.uniform_(-bound, bound, generator=generator)

    def bias(self, t: Tensor, fan_in: int, generator: torch.Generator) -> None:
        """Fill the bias of a linear map."""
        bound = fan_in**-0.5
        t.uniform_(-bound, bound, generator=generator)

    def embedding(self, t: Tensor, generator: torch.Generator) -> None:
        """Fill a table of embeddings."""
        t.normal_(0, 1, generator=generator)
