from __future__ import annotations

import torch

import encoderkit
from encoderkit.testing import make_ctx, make_site
from encoderkit_dyt import DyTOptions
from encoderkit_dyt.norm import DyT


def test_it_is_the_equation_of_the_paper() -> None:
    norm = DyT(DyTOptions(alpha=0.7), make_site(d_model=4))
    with torch.no_grad():
        norm.gamma.copy_(torch.tensor([1.0, 2.0, 3.0, 4.0]))
        norm.beta.copy_(torch.tensor([0.0, 1.0, 0.0, -1.0]))
    x = torch.tensor([[0.0, 1.0, -1.0, 100.0]])
    expected = torch.tensor([[0.0, 2 * 0.6043678 + 1, -3 * 0.6043678, 3.0]])  # tanh(0.7)
    torch.testing.assert_close(norm(x, make_ctx([1])), expected)


def test_it_starts_where_the_option_says() -> None:
    stack = encoderkit.build("norm=dyt", "norm.alpha=0.7", "model.n_layers=1")
    found = [value for name, value in stack.named_parameters() if name.endswith(".alpha")]
    assert [value.item() for value in found] == [torch.tensor(0.7).item()] * 3


def test_the_batch_mates_of_a_sequence_do_not_matter() -> None:
    stack = encoderkit.build("norm=dyt", "model.n_layers=1", dtype=torch.float64)
    x = torch.randn(2, 5, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    alone, both = stack(x[:1]), stack(x)
    torch.testing.assert_close(alone[0], both[0], rtol=0, atol=1e-12)
