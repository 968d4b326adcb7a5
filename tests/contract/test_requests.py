"""Wrong or confounded requests, each with the words that refuse or mark it.

The first ones are how other projects train another variant than their configuration says, without
a word: a key that nothing reads, a misspelt key that is dropped, a value that nothing knows, two
keys of which one wins, a missing value, a baseline that differs in five things.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import encoderkit
from encoderkit.config.presets import Presets
from encoderkit.errors import ConfigError
from encoderkit.plugins import registry
from encoderkit.sweep.plan import notes, plan, single

REFUSED: dict[str, list[str]] = {
    "model.ffn_layer_frequency=2": [
        "model.ffn_layer_frequency=2: there is no such option (the model settings). It has "
        "d_model, n_layers, n_heads, d_ff, sublayers, layers, embed_norm, final_norm.",
    ],
    "model.norm_scheme=pre,post": [
        "model.norm_scheme=pre: model.norm_scheme=pre: there is no such option (the model "
        "settings). It has d_model, n_layers, n_heads, d_ff, sublayers, layers, embed_norm,"
        " final_norm.",
        "model.norm_scheme=post: model.norm_scheme=post: there is no such option (the model"
        " settings). It has d_model, n_layers, n_heads, d_ff, sublayers, layers, "
        "embed_norm, final_norm.",
    ],
    "ffn.dropout_prob=0.1": [
        "ffn.dropout_prob=0.1: there is no such option (mlp, encoderkit 0.1.0). Did you "
        "mean ffn.dropout?",
    ],
    "ffn.act=swiglu": [
        "ffn.act=swiglu: must be one of relu, gelu, gelu_tanh, quick_gelu, silu, relu2, "
        "mish, identity (mlp, encoderkit 0.1.0). Try ffn.act=relu.",
    ],
    "ffn.hiden_act=relu": [
        "ffn.hiden_act=relu: there is no such option (mlp, encoderkit 0.1.0). It has act, "
        "width, bias, dropout.",
    ],
    "norm.epss=1e-5": [
        "norm.epss=1e-5: there is no such option (layernorm, encoderkit 0.1.0). Did you "
        "mean norm.eps?",
    ],
    "norm=rmsnorm norm.bias=false": [
        "norm.bias=false: there is no such option (rmsnorm, encoderkit 0.1.0). It has eps, offset.",
    ],
    "position=relative_key": [
        "position=relative_key: must be one of none, sinusoidal, learned, rope, alibi, t5. "
        "A preset of your own needs --config-dir DIR.",
    ],
    "placement=post placement.subln=true": [
        "placement.subln=true: there is no such option (post, encoderkit 0.1.0). It has none.",
    ],
    "placement=pre,post placement=sandwich": [
        "placement=sandwich: placement was given before, as placement=pre,post. Keep one.",
    ],
    "ffn=gelu,swiglu ffn.width=64 match=params": [
        "ffn=swiglu: sweep.match=params: would set ffn.width, which was said already. Leave"
        " ffn.width out, or choose match=none.",
    ],
    "ffn=gelu,none match=params": [
        "ffn=none: sweep.match=params: the params do not depend on model.d_ff, so nothing "
        "can be matched. Choose match=none.",
    ],
    "ffn.bias=no": [
        "ffn.bias=no: must be true or false (mlp, encoderkit 0.1.0). Try ffn.bias=true.",
    ],
    "ffn.bias=off": [
        "ffn.bias=off: must be true or false (mlp, encoderkit 0.1.0). Try ffn.bias=true.",
    ],
    "ffn.bias=1": [
        "ffn.bias=1: must be true or false (mlp, encoderkit 0.1.0). Try ffn.bias=true.",
    ],
    "model.d_model=0x10": [
        "model.d_model=0x10: must be an integer (the model settings).",
    ],
    "model.d_model=1e3": [
        "model.d_model=1000.0: must be an integer (the model settings).",
    ],
    "train.steps='10'": [
        "train.steps=10: must be an integer (the train settings).",
    ],
    "norm.eps=": [
        "norm.eps=: must be a finite number (layernorm, encoderkit 0.1.0). Try norm.eps=1e-6.",
    ],
    "norm.eps=null": [
        "norm.eps=null: must be a finite number (layernorm, encoderkit 0.1.0). Try norm.eps=1e-6.",
    ],
    "model.final_norm=no": [
        "model.final_norm=no: must be one of auto, true, false (the model settings). Try "
        "model.final_norm=auto.",
    ],
    "model.n_heads=5": [
        "model.n_heads=5: must divide model.d_model=64. Try model.n_heads=4.",
    ],
    "norm=rmsnorm,rmsnrm": [
        "norm=rmsnrm: must be one of layernorm, rmsnorm, batchnorm, scalenorm, dyt, derf, "
        "none. Did you mean rmsnorm?",
    ],
    "norm=glob(x*)": [
        "norm=glob(x*): matches nothing. There are layernorm, rmsnorm, batchnorm, "
        "scalenorm, dyt, derf, none.",
    ],
    "ffn=glob(glu*x)": [
        "ffn=glob(glu*x): matches nothing. There are mlp, glu, moe, none, bilinear, geglu, gelu,"
        " reglu, relu, relu2, sigmoid_glu, silu, swiglu.",
    ],
    "train.lr=interval(1e-4,1e-2)": [
        "train.lr=interval(1e-4,1e-2): an interval has no points. Use range(start,stop,step).",
    ],
    "norm=layernorm,rmsnorm placement=pre,post,sandwich sweep.zip=[norm+placement]": [
        "sweep.zip=[norm+placement]: axes that move together have as many values each: norm"
        " has 2, placement has 3. Give each as many.",
    ],
    "norm=layernorm,rmsnorm sweep.zip=[norm+placement]": [
        "sweep.zip=[norm+placement]: placement has not several values here.",
    ],
    "norm=layernorm,rmsnorm sweep.exclude=['norm=batchnorm']": [
        "sweep.exclude=[norm=batchnorm]: leaves no point out. Correct it, or remove it.",
    ],
    "norm=layernorm,rmsnorm sweep.exclude=['nrom=rmsnorm']": [
        "sweep.exclude=[nrom=rmsnorm]: no point has nrom. Correct it, or remove it.",
    ],
    "norm=layernorm,dyt norm.eps=1e-5": [
        "norm=dyt: norm.eps=1e-5: there is no such option (dyt, encoderkit 0.1.0). It has alpha."
        " Type sweep.optional=[norm.eps] to set it only where it has an effect.",
    ],
    "norm=layernorm,dyt norm.eps=1e-5,1e-4": [
        "norm=dyt norm.eps=1e-5: norm.eps=1e-5: there is no such option (dyt, encoderkit "
        "0.1.0). It has alpha. Type sweep.optional=[norm.eps] to set it only where it has an "
        "effect.",
        "norm=dyt norm.eps=0.0001: norm.eps=0.0001: there is no such option (dyt, "
        "encoderkit 0.1.0). It has alpha. Type sweep.optional=[norm.eps] to set it only where it "
        "has an effect.",
    ],
    "norm=dyt,none norm.eps=1e-5 sweep.optional=[norm.eps]": [
        "sweep.optional=[norm.eps]: no variant has it. Remove it, and its values.",
    ],
    "norm=rmsnorm norm.eps=1e-5 norm.eps=1e-6": [
        "norm.eps=1e-6: norm.eps was given before, as norm.eps=1e-5. Keep one.",
    ],
    "seeds=3 sweep.seeds=2": [
        "sweep.seeds=2: sweep.seeds was given before, as seeds=3. Keep one.",
    ],
    "seeds=[0,1] seed=7": [
        "seed=7: has no effect beside a list of seeds. Remove it, or give seeds=3.",
    ],
    "seeds=1,2": [
        "sweep.seeds: says how a sweep runs, and cannot vary within one. Give one value; a "
        "list is sweep.seeds=[0,1].",
    ],
    "run.threads=1,2": [
        "run.threads: says how a sweep runs, and cannot vary within one. Give one value; a "
        "list is sweep.seeds=[0,1].",
    ],
    "+norm.eps=1e-5": [
        "+norm.eps=1e-5: '+' would add a key, and only keys that a part declares have an "
        "effect. Type norm.eps=1e-5.",
    ],
    "norm.part=rmsnorm": [
        "norm.part=rmsnorm: is read-only. Choose with norm=rmsnorm.",
    ],
    "_target_=os.system": [
        "_target_=os.system: a configuration names parts, never code. Remove _target_.",
    ],
    "norm={part:rmsnorm,eps:1e-5}": [
        "norm={part:rmsnorm,eps:1e-5}: must be one of layernorm, rmsnorm, batchnorm, "
        "scalenorm, dyt, derf, none.",
    ],
    "attention=sdpa attention.softcap=30": [
        "attention=sdpa: cannot serve attention.softcap=30.0 (softcap) (encoderkit 0.1.0). "
        "naive, flex can: try attention=naive.",
    ],
    "attention=none position=rope": [
        "position=rope: no part asks for it: there is no attention that reads it. Try "
        "position=none.",
    ],
    "model.layers=[{at:0,norm:rmsnrm}]": [
        "model.layers[0].norm=rmsnrm: must be one of layernorm, rmsnorm, batchnorm, "
        "scalenorm, dyt, derf, none. Did you mean rmsnorm?",
    ],
    "model.layers=[{at:5,norm:none}]": [
        "model.layers[0].at=5: must be from -3 to 2, of 3 layers. Try at: '::2'.",
    ],
    "model.layers=[{at:0,placment:post}]": [
        "model.layers[0].placment: a rule has no such key. Did you mean placement?",
        "model.layers[0]: names no part, so it has no effect. Name one of norm, placement, "
        "ffn, attention, position.",
    ],
    "model.layers=[{at:0}]": [
        "model.layers[0]: names no part, so it has no effect. Name one of norm, placement, "
        "ffn, attention, position.",
    ],
    "model.sublayers=[attention,mlp]": [
        "model.sublayers=[attention,mlp]: a sublayer is attention, ffn, the parallel pair "
        "attention+ffn, or one of them scaled, such as 0.5*ffn; not mlp. Try "
        "model.sublayers=[attention,ffn].",
    ],
    "norm=layernorm norm=rmsnorm,none": [
        "norm=rmsnorm,none: norm was given before, as norm=layernorm. Keep one.",
    ],
    "train.batch=8,12 train.steps=5 train.warmup=1 budget=tokens": [
        "train.batch=12: sweep.budget=tokens: 10.0% is the nearest to the baseline's tokens"
        " that steps give. Choose budget=steps, or more steps.",
    ],
    "train.warmup=500": [
        "train.warmup=500: must be at most train.steps=400. Try train.warmup=40.",
    ],
    "train.schedule=cosine": [
        "train.schedule=cosine: must be one of linear, constant (the train settings). Try "
        "train.schedule=linear.",
    ],
    "task=srot": [
        "task=srot: must be one of sort, mlm_pydoc. Did you mean sort?",
    ],
    "sweep.baseline=norm=rmsnrm norm=layernorm,rmsnorm": [
        "sweep.baseline=norm=rmsnrm: must be one of: norm=layernorm; norm=rmsnorm. Did you "
        "mean norm=rmsnorm?",
    ],
    "sweep.match=parameters ffn=gelu,swiglu": [
        "sweep.match=parameters: must be one of none, params, flops (the sweep settings). "
        "Try sweep.match=none.",
    ],
    "sweep.zap=3": [
        "sweep.zap=3: there is no such option (the sweep settings). Did you mean sweep.zip?",
    ],
    "position=learned,none position.max_len=64 sweep.optional=[position.max_len] match=flops": [
        "position=none: sweep.match=flops: a part's FLOPs depend on the data, and are "
        "unknown. Try match=params.",
    ],
    "train.lr=range(1,1)": [
        "train.lr=range(1,1): matches nothing.",
    ],
    "norm=Layernorm": [
        "norm=Layernorm: must be one of layernorm, rmsnorm, batchnorm, scalenorm, dyt, "
        "derf, none. Did you mean layernorm?",
    ],
    "Norm=rmsnorm": [
        "Norm=rmsnorm: there is no such key. Did you mean norm?",
    ],
    "train.lr=1e-3,3e-3 seed=range(0,200000)": [
        "train.lr=... seed=...: spans more than the 100000 points that can be planned. Take"
        " fewer values.",
    ],
    "ffn.gate=true": [
        "ffn.gate=true: there is no such option (mlp, encoderkit 0.1.0). It has act, width,"
        " bias, dropout.",
    ],
    "model.d_ff=256.0": [
        "model.d_ff=256.0: must be an integer or null (the model settings).",
    ],
    "model.layers=[{at:0,placement:psot}]": [
        "model.layers[0].placement=psot: must be one of pre, post, sandwich, reordered, "
        "layerscale, deepnorm, residual2, rezero, none. Did you mean post?",
    ],
    "sweep.one_at_a_time=yes norm=layernorm,rmsnorm": [
        "sweep.one_at_a_time=yes: must be true or false (the sweep settings). Try "
        "sweep.one_at_a_time=false.",
    ],
    "sweep.optional=[norm.esp] norm=layernorm,dyt norm.eps=1e-5": [
        "sweep.optional=[norm.esp]: is not among the overrides. Did you mean norm.eps?",
    ],
    "ffn=gelu,swiglu train.steps=[10,20]": [
        "train.steps=[10,20]: must be an integer (the train settings).",
    ],
    "dropout_prob=0.1": [
        "dropout_prob=0.1: there is no such key. There are norm, placement, ffn, attention,"
        " position, init, task, model, train, run, sweep, seed, seed_init, seed_data, "
        "seeds, jobs, match, budget, experiment.",
    ],
    "dropout=0.1": [
        "dropout=0.1: there is no such key. Did you mean ffn.dropout=0.1 or attention.dropout=0.1?",
    ],
    "norm_scheme=post": [
        "norm_scheme=post: there is no such key. There are norm, placement, ffn, attention,"
        " position, init, task, model, train, run, sweep, seed, seed_init, seed_data, "
        "seeds, jobs, match, budget, experiment.",
    ],
    "train.precision=fp16": [
        "train.precision=fp16: must be one of fp32, bf16 (the train settings). Try "
        "train.precision=fp32.",
    ],
}
MARKED: dict[str, list[str]] = {
    "norm=layernorm,scalenorm": [
        "confounded: norm=scalenorm: norm.eps: 1e-6 -> 0.001",
    ],
    "ffn=gelu,swiglu": [
        "confounded: ffn=swiglu: ffn.bias: true -> false",
    ],
    "ffn=gelu,swiglu match=params": [
        "confounded: ffn=swiglu: ffn.bias: true -> false",
        "ffn=swiglu: +1.4% parameters after matching",
    ],
    "ffn=geglu,glu ffn.act=gelu": [
        "ffn=glu is ffn=geglu; it runs once",
    ],
    "norm=scalenorm norm.eps=1,1.0,1e0": [
        "norm.eps=1.0 is norm.eps=1; it runs once",
    ],
    "model.embed_norm=layernorm,scalenorm": [
        "confounded: model.embed_norm=scalenorm: model.embed_norm.eps: 1e-6 -> 0.001",
    ],
}

# What only a plan has, or a stack has not: axes, seeds, shapes of sweeps, and training.
AXES = ("train.", "task=", "sweep.", "seeds=", "match=", "budget=", "run.")
SINGLE = [
    request
    for request, words in REFUSED.items()
    if not any("," in word.partition("=")[2] and "[" not in word for word in request.split(" "))
    and not any(form in request for form in ("range(", "glob(", "interval(", "sweep.", "seeds="))
]


def refused(call: object, request: list[str]) -> list[str]:
    """Return the faults of a request, as they are where no stranger's parts are installed."""
    with pytest.raises(ConfigError) as caught:
        call(request)  # type: ignore[operator]
    strangers = [
        name
        for group in Presets(registry()).groups.values()
        for name, source in group.items()
        if not source.owner.startswith("encoderkit ")
    ]
    texts = [str(fault) for fault in caught.value.faults]
    for name in sorted(strangers, key=len, reverse=True):
        texts = [text.replace(f", {name}", "") for text in texts]
    return texts


@pytest.mark.parametrize("request_", REFUSED)
def test_a_plan_refuses(request_: str) -> None:
    assert refused(plan, request_.split(" ")) == REFUSED[request_]


@pytest.mark.parametrize("request_", SINGLE)
def test_one_run_refuses_in_the_same_words(request_: str) -> None:
    assert refused(single, request_.split(" ")) == REFUSED[request_]
    if not any(word.startswith(AXES) for word in request_.split(" ")):
        assert (
            refused(lambda words: encoderkit.build(*words), request_.split(" "))
            == (REFUSED[request_])
        )


@pytest.mark.parametrize("request_", MARKED)
def test_a_plan_marks(request_: str) -> None:
    found = plan(request_.split(" "))
    assert notes(found) == MARKED[request_]


def test_the_table_is_long_enough() -> None:
    assert len(REFUSED) + len(MARKED) >= 60
    assert len(SINGLE) >= 35


def test_a_baseline_that_differs_in_five_things_at_once_says_so(tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    for name, text in (
        ("bert", "defaults: [override /ffn: gelu]\nffn: {dropout: 0.1}\nnorm: {eps: 1e-12}"),
        (
            "new",
            "defaults: [override /norm: rmsnorm, override /ffn: swiglu, override /position: rope]\n"
            "norm: {eps: 1e-5}\ntrain: {lr: 1e-3}",
        ),
    ):
        file = tmp_path / "experiment" / f"{name}.yaml"
        file.write_text(f"# @package _global_\n{text}\n")
    found = plan(["experiment=bert,new"], config_dirs=[tmp_path])
    assert notes(found) == [
        "confounded: experiment=new: norm.eps: 1e-12 -> 1e-5; ffn.bias: true -> false; "
        "ffn.dropout: 0.1 -> 0.0; train.lr: 0.003 -> 0.001"
    ]


@pytest.mark.hazard("omry/omegaconf#1131")
def test_an_experiment_that_leaves_a_value_open_is_refused(tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    file = tmp_path / "experiment" / "open.yaml"
    file.write_text("# @package _global_\nnorm:\n  eps: ???\n")
    with pytest.raises(ConfigError, match=r"norm\.eps: \?\?\? says nothing."):
        plan(["experiment=open"], config_dirs=[tmp_path])
