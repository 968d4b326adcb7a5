from __future__ import annotations

from encoderkit.nn.site import Site


def test_norms_stand_below_their_part_and_are_counted() -> None:
    made: list[Site] = []
    site = Site(
        d_model=8,
        d_ff=32,
        n_heads=2,
        n_layers=3,
        layer=1,
        slot="ffn",
        path="layers.1.ffn.placement",
        make_norm=made.append,
        ask_position=lambda: "rope",
    )
    site.norm()
    site.norm(width=4)
    assert [(s.path, s.d_model) for s in made] == [
        ("layers.1.ffn.placement.norm", 8),
        ("layers.1.ffn.placement.norm_2", 4),
    ]
    assert all((s.layer, s.slot, s.d_ff) == (1, "ffn", 32) for s in made)
    assert site.position() == "rope"
