from __future__ import annotations

from dataclasses import replace

from encoderkit.nn.site import Site
from encoderkit.testing import make_site


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


def test_a_site_tells_what_is_read_from_it() -> None:
    seen: list[str] = []
    plain = make_site(d_ff=8, norm=lambda site: site)
    site = plain.noting(seen.append)
    assert seen == [] and site.d_ff == 8
    assert "d_ff" in seen and "n_heads" not in seen
    seen.clear()
    inner = site.norm(3)
    assert "d_ff" not in seen and (inner.d_model, inner.path) == (3, "layers.0.ffn.norm")
    assert site.norm().path == "layers.0.ffn.norm_2"
    assert replace(site, d_model=3).n_heads == 2 and "n_heads" in seen  # a copy reads all
