from __future__ import annotations

import pytest
import torch

import encoderkit
from encoderkit.testing import make_ctx, make_site
from encoderkit_prmsnorm import PRMSNormOptions
from encoderkit_prmsnorm.norm import PRMSNorm


def test_it_is_the_equation_of_the_paper() -> None:
    norm = PRMSNorm(PRMSNormOptions(share=0.5, eps=0.5), make_site(d_model=4))
    with torch.no_grad():
        norm.gain.copy_(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    x = torch.tensor([[3.0, 4.0, -100.0, 0.5], [0.0, 0.0, 1.0, 0.0]])
    first, second = 13**0.5, 0.5**0.5  # (9 + 16) / 2 + 0.5, and 0 + 0.5
    expected = [[3 / first, 8 / first, -300 / first, 2 / first], [0.0, 0.0, 3 / second, 0.0]]
    torch.testing.assert_close(norm(x, make_ctx([1, 1])), torch.tensor(expected))


@pytest.mark.parametrize(
    ("share", "width", "channels"),
    [(0.0625, 64, 4), (0.0625, 63, 4), (0.0625, 4, 1), (0.07, 100, 7), (1e-12, 8, 1), (1, 8, 8)],
)
def test_a_share_is_rounded_up_to_whole_channels(share: float, width: int, channels: int) -> None:
    norm = PRMSNorm(PRMSNormOptions(share=share), make_site(d_model=width))
    x = torch.ones(1, width)
    x[0, channels:] = 5.0
    torch.testing.assert_close(norm(x, make_ctx([1])), x)
    x[0, :channels] = 2.0
    torch.testing.assert_close(norm(x, make_ctx([1])), x / 2)


def test_all_channels_are_rmsnorm() -> None:
    x = torch.randn(2, 5, 64, generator=torch.Generator().manual_seed(0))
    ours = encoderkit.build("norm=prmsnorm", "norm.share=1", "model.n_layers=1")
    torch.testing.assert_close(ours(x), encoderkit.build("norm=rmsnorm", "model.n_layers=1")(x))
