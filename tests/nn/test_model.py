from __future__ import annotations

import torch

from encoderkit.config.request import configure
from encoderkit.nn.build import build_model
from encoderkit.nn.context import Out


def test_logits_are_the_head_of_the_stack_of_the_embedding() -> None:
    model = build_model(configure("model.n_layers=1", "attention=naive"), 13, 7)
    tokens, lengths = torch.randint(0, 13, (9,)), [4, 0, 5]
    out = Out()
    scores = model.logits(tokens, lengths, out=out)
    assert scores.shape == (9, 7)
    inside = model(model.embed(tokens), lengths=lengths)
    assert torch.equal(scores, model.head(inside))
    assert [tuple(w.shape[1:]) for w in out.records["layers.0.attention"]] == [
        (4, 4),
        (0, 0),
        (5, 5),
    ]
    index = torch.tensor([8, 1])
    assert torch.allclose(model.logits(tokens, torch.tensor(lengths), index), scores[index])


def test_step_reaches_the_dropout() -> None:
    model = build_model(configure("ffn.dropout=0.5", "attention.dropout=0.5"), 13, 7)
    tokens = torch.randint(0, 13, (6,))
    first, again, other = (model.logits(tokens, [6], step=step) for step in (3, 3, 4))
    assert torch.equal(first, again) and not torch.equal(first, other)


def test_embedding_and_head_do_not_change_the_stack() -> None:
    config = configure()
    small, large = build_model(config, 5, 3).state_dict(), build_model(config, 9, 8).state_dict()
    assert {k for k in small if k[0] != "l"} == {
        *("embed.weight", "head.weight", "head.bias", "final.weight", "final.bias")
    }
    assert all(
        torch.equal(small[k], large[k]) for k in small if not k.startswith(("embed", "head"))
    )
