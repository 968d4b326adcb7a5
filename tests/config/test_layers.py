"""What stands in each layer: sublayer patterns, rules for some layers, the embedding's norm."""

from __future__ import annotations

import pytest

from encoderkit.config.check import check, plain
from encoderkit.config.identity import identity, part_versions
from encoderkit.config.layers import Term, indices, sublayers_of, terms
from encoderkit.config.request import configure
from encoderkit.errors import ConfigError
from encoderkit.plugins import registry


def words(*request):
    with pytest.raises(ConfigError) as caught:
        configure(*request)
    return str(caught.value)


def test_sublayers_are_read():
    found = terms(["0.5*ffn", "attention + ffn", "ffn", "attention+ffn"])
    assert found == [
        Term("ffn", ("ffn",), 0.5),
        Term("attention_ffn", ("attention", "ffn"), 1.0),
        Term("ffn_2", ("ffn",), 1.0),
        Term("attention_ffn_2", ("attention", "ffn"), 1.0),
    ]
    assert [term.paired for term in found] == [False, True, False, True]


def test_digits_are_those_of_a_keyboard():
    assert "not \u0663*ffn." in words("model.sublayers=['\u0663*ffn']")
    assert "must be a layer's number" in words("model.layers=[{at:'\u0661:',norm:rmsnorm}]")
    assert "start:stop:step. Try" in words("model.layers=[{at:'::00',norm:rmsnorm}]")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("conv", "such as 0.5*ffn; not conv."),
        ("ffn+ffn", "not ffn+ffn."),
        ("-1*ffn", "not -1*ffn."),
        ("", "not ."),
        ("0*ffn", "0*ffn would take the sublayer away; leave it out."),
    ],
)
def test_sublayers_that_are_none(text, expected):
    with pytest.raises(ValueError) as caught:
        terms([text])
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("at", "expected"),
    [
        (0, [0]),
        (-1, [5]),
        ([0, -1, 5], [0, 5]),
        ("::3", [0, 3]),
        ("2::3", [2, 5]),
        (":2", [0, 1]),
        ("-2:", [4, 5]),
        ("::-1", [0, 1, 2, 3, 4, 5]),
        ("9:", []),
    ],
)
def test_layers_are_selected_as_python_counts(at, expected):
    assert sorted(indices(at, 6)) == expected


@pytest.mark.parametrize("at", [6, -7, [0, 6], "x", "1", "::0", True, 1.5, None, [True], ["0"]])
def test_selections_that_are_none(at):
    with pytest.raises(ValueError, match="must be"):
        indices(at, 6)


RULES = (
    "model.layers=[{at:'::2',norm:{part:rmsnorm,eps:1e-5},ffn:swiglu},"
    "{at:0,slot:attention,norm:none},{at:-1,attention:{bias:true}}]"
)


def test_rules_change_parts_of_some_layers():
    config = configure("model.n_layers=3", RULES)
    found = {
        (n, term.slot): {k: c.entry.part.name for k, c in parts.items()}
        for n in range(3)
        for term, parts in sublayers_of(config, n)
    }
    assert [found[n, "ffn"]["norm"] for n in range(3)] == ["rmsnorm", "layernorm", "rmsnorm"]
    assert [found[n, "attention"]["norm"] for n in range(3)] == ["none", "layernorm", "rmsnorm"]
    assert [found[n, "ffn"]["ffn"] for n in range(3)] == ["glu", "mlp", "glu"]
    rules = config.model.layers
    assert rules[0].parts["norm"].options.eps == 1e-5
    assert rules[0].parts["ffn"].options.act == "silu"
    assert rules[2].parts["attention"].entry.part.name == "sdpa"
    assert rules[2].parts["attention"].options.bias


def test_options_alone_change_the_part_that_is_chosen():
    config = configure("norm=rmsnorm", "norm.eps=1e-4", "model.layers=[{at:0,norm:{offset:1}}]")
    (rule,) = config.model.layers
    assert (rule.parts["norm"].options.eps, rule.parts["norm"].options.offset) == (1e-4, 1.0)
    named = configure(
        "norm=rmsnorm", "norm.eps=1e-4", "model.layers=[{at:0,norm:{part:rmsnorm,offset:1}}]"
    )
    assert named.model.layers[0].parts["norm"].options.eps == 1e-6


def test_a_kind_taken_away_in_some_layers_leaves_the_others():
    config = configure(
        "model.n_layers=2",
        "model.sublayers=[attention+ffn]",
        "model.layers=[{at:1,attention:none}]",
    )
    slots = [[term.slot for term, _ in sublayers_of(config, n)] for n in range(2)]
    assert slots == [["attention_ffn"], ["attention_ffn"]]


def test_what_is_left_of_a_pair_takes_no_other_sublayers_place():
    config = configure(
        "model.n_layers=2",
        "model.sublayers=[0.5*attention+ffn,ffn]",
        "model.layers=[{at:1,attention:none}]",
    )
    left = [term for term, _ in sublayers_of(config, 1)]
    assert left == [Term("attention_ffn", ("ffn",), 0.5), Term("ffn", ("ffn",), 1.0)]
    assert [term.paired for term in left] == [True, False]


def test_strings_and_mappings_mean_the_same():
    mapping = {
        "model": {
            "layers": [
                {"at": "::2", "norm": {"part": "rmsnorm", "eps": 1e-5}, "ffn": "swiglu"},
                {"at": 0, "slot": "attention", "norm": "none"},
                {"at": -1, "attention": {"bias": True}},
            ],
            "embed_norm": {"eps": 1e-5},
        }
    }
    config = configure(mapping)
    assert config == configure(RULES, "model.embed_norm={eps:1e-5}")
    assert check(plain(config), registry()) == config
    assert configure({"model": config.model}) == config
    assert config.model.embed_norm.entry.part.name == "layernorm"
    assert configure("model.embed_norm=rmsnorm").model.embed_norm.entry.part.name == "rmsnorm"


def test_rules_are_part_of_what_a_cell_is():
    plain_one, ruled = configure({}), configure("model.layers=[{at:0,norm:rmsnorm}]")
    assert identity(plain_one, "d") != identity(ruled, "d")
    assert part_versions(ruled)["model.layers[0].norm"]["part"] == "rmsnorm"
    assert part_versions(configure("model.embed_norm=rmsnorm"))["model.embed_norm"]["source"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("model.layers=3", "model.layers: must be a list of rules. Try model.layers=[{at:0,"),
        ("model.layers=[3]", "model.layers[0]: a rule is a mapping with `at`."),
        ("model.layers=[{norm:none}]", "model.layers[0]: a rule is a mapping with `at`."),
        ("model.layers=[{at:0}]", "model.layers[0]: names no part, so it has no effect."),
        (
            "model.layers=[{at:0,nrm:none}]",
            "model.layers[0].nrm: a rule has no such key. Did you mean norm?",
        ),
        ("model.layers=[{at:9,norm:none}]", "model.layers[0].at=9: must be from -3 to 2, of 3"),
        ("model.layers=[{at:'7:',norm:none}]", "model.layers[0].at=7:: selects none of the 3"),
        (
            "model.layers=[{at:0,slot:fnn,norm:none}]",
            "model.layers[0].slot=fnn: must be one of attention, ffn. Did you mean ffn?",
        ),
        ("model.layers=[{at:0,slot:[1],norm:none}]", "must be one of attention, ffn."),
        (
            "model.layers=[{at:0,slot:ffn,attention:naive}]",
            "model.layers[0].attention=naive: there is no attention in that sublayer.",
        ),
        (
            "model.layers=[{at:0,norm:rmsnrm}]",
            "model.layers[0].norm=rmsnrm: must be one of layernorm, rmsnorm,",
        ),
        (
            "model.layers=[{at:0,norm:{eps:-1}}]",
            "model.layers[0].norm.eps=-1: must be above 0 (layernorm, encoderkit 0.1",
        ),
        (
            "model.layers=[{at:0,norm:{part:rmsnorm,esp:1}}]",
            "model.layers[0].norm.esp=1: there is no such option (rmsnorm, encoderkit",
        ),
        ("model.layers=[{at:0,norm:[1]}]", "model.layers[0].norm=[1]: must be a choice, or"),
        ("model.embed_norm={eps:0}", "model.embed_norm.eps=0: must be above 0"),
        ("model.embed_norm=3", "model.embed_norm=3: must be a choice, or a mapping with `part`."),
        ("model.embed_norm=nrm", "model.embed_norm=nrm: must be one of"),
    ],
)
def test_faults_of_rules(text, expected):
    assert expected in words(text)


def test_a_fault_of_the_part_above_is_named_once():
    text = words("norm=rmsnrm", "model.layers=[{at:0,norm:{eps:1}}]")
    assert "1 fault" in text or text.startswith("norm=rmsnrm")
