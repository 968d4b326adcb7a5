"""Wrong parts: norms, FFNs, inits. Each names the property that must find it out."""

from __future__ import annotations

from dataclasses import dataclass, replace

import kit_references as right
import torch
import torch.nn.functional as F
from torch import nn

from encoderkit.api import Options, Part, Traits, option
from encoderkit.config.request import configure
from encoderkit.config.schema import Chosen
from encoderkit.nn import FFN, Dropout, Init, Norm
from encoderkit.nn.context import SILENT
from encoderkit.registry import Entry, Owner
from encoderkit.testing.subject import Subject
from encoderkit_builtin.catalogue import BatchNormOptions, RMSNormOptions
from encoderkit_builtin.catalogue_ffns import GLUOptions, MLPOptions, MoEOptions
from encoderkit_builtin.ffns import GLU, MLP, MoE
from encoderkit_builtin.inits import Xavier
from encoderkit_builtin.norms import BatchNorm, RMSNorm


@dataclass(frozen=True)
class Mutant:
    """A wrong part, or a right one that declares what is not true."""

    kind: str
    target: str
    by: str
    options: Options
    traits: Traits
    reference: object = None

    def __str__(self):
        return f"{self.kind}={self.target.partition(':')[2]} ({self.by})"

    def subject(self):
        """Return the mutant as the kit takes it."""
        part = Part(self.kind, "mutant", self.target, "wrong", type(self.options), self.traits)
        chosen = Chosen(Entry(part, Owner("mutants", "0")), self.options)
        (base,) = [configure({})]
        return Subject(self.kind, base, self.reference).with_chosen(chosen)


MUTANTS: list[Mutant] = []


def mutant(kind, by, reference=None, options=None, **traits):
    """Add the decorated class to the mutants."""

    def add(cls):
        target = f"{cls.__module__}:{cls.__qualname__}"
        given = options or Options()
        MUTANTS.append(Mutant(kind, target, by, given, Traits(**traits), reference))
        return cls

    return add


def liar(kind, cls, by, reference=None, options=None, **traits):
    """Add a right part with traits that are not true."""
    mutant(kind, by, reference, options, **traits)(cls)


class Gained(Norm):
    """What most mutants have in common."""

    def __init__(self, opts, site):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(site.d_model))

    def scale(self, x):
        wide = x if x.dtype == torch.float64 else x.float()  # squares overflow in float16
        return (wide / (wide.square().mean(1, keepdim=True) + 1e-6).sqrt()).to(
            x.dtype
        ) * self.weight

    def forward(self, x, ctx):
        return self.scale(x)


COUPLED = {
    "batch_coupled": True,
    "train_and_eval_differ": True,
    "has_buffers": True,
    "min_tokens_in_train": 2,
    "checkpoint_safe": False,
}
BATCH = BatchNormOptions()
RMS = RMSNormOptions()


def without(name):
    return {key: value for key, value in COUPLED.items() if key != name}


# What is declared and not so, or is so and not declared.
liar("norm", BatchNorm, "batch_mates_train", options=BATCH, **without("batch_coupled"))
liar("norm", BatchNorm, "train_is_eval", options=BATCH, **without("train_and_eval_differ"))
liar("norm", BatchNorm, "no_buffers", options=BATCH, **without("has_buffers"))
liar("norm", BatchNorm, "one_token", options=BATCH, **without("min_tokens_in_train"))
liar("norm", BatchNorm, "checkpointing", options=BATCH, **without("checkpoint_safe"))
liar("norm", RMSNorm, "batch_mates_train", options=RMS, batch_coupled=True)
liar("norm", RMSNorm, "train_is_eval", options=RMS, train_and_eval_differ=True)
liar("norm", RMSNorm, "no_buffers", options=RMS, has_buffers=True)
liar("norm", RMSNorm, "one_token", options=RMS, min_tokens_in_train=2)
liar("norm", RMSNorm, "checkpointing", options=RMS, checkpoint_safe=False)
liar("norm", RMSNorm, "train_draws_nothing", options=RMS, stochastic=True)
liar("norm", RMSNorm, "order_of_tokens", options=RMS, order_aware=True)
liar("norm", RMSNorm, "layouts", options=RMS, layouts=frozenset({"packed"}))
liar("norm", RMSNorm, "exact", right.rmsnorm, options=RMS, approximate=1e-3)
liar("norm", RMSNorm, "gradients", options=RMS, differentiable=False)
liar("norm", RMSNorm, "compiles", options=RMS, compiles=False)
liar("norm", RMSNorm, "exports", options=RMS, exports=False)
liar("norm", RMSNorm, "parameters", options=RMS, frozen=("weight",))


@mutant("norm", "exact", right.rmsnorm)
class EpsOutsideTheRoot(Gained):
    def forward(self, x, ctx):
        return x / (x.square().mean(1, keepdim=True).sqrt() + 1e-6) * self.weight


@mutant("norm", "exact", right.layernorm)
class UnbiasedVariance(Gained):
    def __init__(self, opts, site):
        super().__init__(opts, site)
        self.bias = nn.Parameter(torch.zeros(site.d_model))

    def forward(self, x, ctx):
        centred = x - x.mean(1, keepdim=True)
        return centred / (x.var(1, keepdim=True) + 1e-6).sqrt() * self.weight + self.bias


@mutant("norm", "exact", right.rmsnorm)
class EpsOfAnotherSize(Gained):
    def forward(self, x, ctx):
        return x / (x.square().mean(1, keepdim=True) + 1e-5).sqrt() * self.weight


@mutant("norm", "stated_error", right.rmsnorm, approximate=1e-4)
class WorseThanItStates(Gained):
    def forward(self, x, ctx):
        return self.scale(x) * 1.01


class Halved(torch.autograd.Function):
    """Passes x on, and half of its gradient."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad / 2


@mutant("norm", "gradients")
class HalvedGradient(Gained):
    def forward(self, x, ctx):
        return self.scale(Halved.apply(x))


@mutant("norm", "gradients")
class DetachedStatistics(Gained):
    def forward(self, x, ctx):
        return x / (x.square().mean(1, keepdim=True).detach() + 1e-6).sqrt() * self.weight


@mutant("norm", "batch_mates_eval")
class CentredOverTheBatch(Gained):
    def forward(self, x, ctx):
        return self.scale(x - x.mean(0)) if len(x) else x * self.weight


@mutant("ffn", "batch_mates_eval")
class DividedByTheLongest(FFN):
    def __init__(self, opts, site):
        super().__init__()
        self.map = nn.Linear(site.d_model, site.d_model)

    def forward(self, x, ctx):
        return self.map(x) / max(1, ctx.max_len)


@mutant("norm", "order_of_sequences")
class FirstIsSpecial(Gained):
    def forward(self, x, ctx):
        first = torch.arange(len(x), device=x.device) < 1
        return self.scale(x) * (1 + first[:, None].to(x.dtype))


@mutant("norm", "order_of_tokens")
class ByPosition(Gained):
    def forward(self, x, ctx):
        return self.scale(x) * (1 + ctx.positions[:, None].to(x.dtype))


@mutant("norm", "empty_sequence")
class NanForAnEmptySequence(Gained):
    def forward(self, x, ctx):
        means = [t.mean() for t in x.split(ctx.lengths)]
        return self.scale(x) + 0 * sum(means)


@mutant("norm", "length_at_the_door")
class StatisticsOverPadding(Gained):
    def forward(self, x, ctx):
        return self.scale(x) / max(1, ctx.shape[1])


@mutant("norm", "shape_and_dtype")
class Float32(Gained):
    def forward(self, x, ctx):
        return self.scale(x).float()


@mutant("norm", "shape_and_dtype")
class HalfTheTokens(Gained):
    def forward(self, x, ctx):
        return self.scale(x)[: len(x) // 2]


@mutant("norm", "sizes")
class EvenWidthsOnly(Gained):
    def forward(self, x, ctx):
        return self.scale(x.reshape(len(x), x.shape[1] // 2, 2).flatten(1))


@mutant("norm", "strides")
class NeedsContiguous(Gained):
    def forward(self, x, ctx):
        return self.scale(x.view(-1).view(x.shape))


@mutant("norm", "input_intact")
class InPlace(Gained):
    def forward(self, x, ctx):
        with torch.no_grad():
            x.mul_(2)
        return self.scale(x)


@mutant("norm", "input_intact")
class MovesPositions(Gained):
    def forward(self, x, ctx):
        ctx.positions = ctx.positions + 1
        return self.scale(x)


@mutant("norm", "lets_go")
class KeepsX(Gained):
    def forward(self, x, ctx):
        self.last = [x]
        return self.scale(x)


@mutant("norm", "lets_go")
class KeepsTheContext(Gained):
    def forward(self, x, ctx):
        self.held = ctx
        return self.scale(x)


@mutant("norm", "listener")
class OtherWhenHeard(Gained):
    def forward(self, x, ctx):
        return self.scale(x) * (1 if ctx.out is SILENT else 1.5)


@mutant("norm", "listener")
class NanInTheRecord(Gained):
    def forward(self, x, ctx):
        ctx.out.record("entropy", (x * 0).log() * 0)
        return self.scale(x)


@mutant("norm", "no_tokens")
class FailsOnNothing(Gained):
    def forward(self, x, ctx):
        return self.scale(x) + 0 * x.amax(0)


@mutant("norm", "no_tokens", has_buffers=True)
class CountsEmptyBatches(Gained):
    def __init__(self, opts, site):
        super().__init__(opts, site)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x, ctx):
        if self.training:
            self.count += 1
        return self.scale(x) * (1 + self.count)


@mutant("norm", "one_token", batch_coupled=True, train_and_eval_differ=True)
class NanForOneToken(Gained):
    def forward(self, x, ctx):
        return x / x.std(0) if self.training and len(x) else self.scale(x)


@mutant("norm", "eval_draws_nothing")
class StrayDraw(Gained):
    def forward(self, x, ctx):
        torch.rand(1)
        return self.scale(x)


@mutant("norm", "train_draws_nothing")
class NoiseInTraining(Gained):
    def forward(self, x, ctx):
        noise = torch.randn_like(x) if self.training else 0
        return self.scale(x) + 0.1 * noise


@mutant("norm", "train_repeats", stochastic=True)
class NoiseWithoutAKey(NoiseInTraining):
    pass


@mutant("norm", "train_is_eval")
class OtherInEval(Gained):
    def forward(self, x, ctx):
        return self.scale(x) * (1.0 if self.training else 0.9)


@mutant("norm", "no_history")
class HiddenHistory(Gained):
    seen = 0.0

    def forward(self, x, ctx):
        y = self.scale(x) * (1 + self.seen)
        self.seen = float(x.detach().abs().max()) if len(x) else 0.0
        return y


@mutant("norm", "no_buffers")
class HiddenRunningMean(Gained):
    def __init__(self, opts, site):
        super().__init__(opts, site)
        self.register_buffer("mean", torch.zeros(site.d_model))

    def forward(self, x, ctx):
        if self.training and len(x):
            self.mean = self.mean + 0.1 * x.detach().mean(0)
        return self.scale(x) - self.mean * (not self.training)


@mutant("norm", "low_precision")
class SumsInTheLowDtype(Gained):
    def forward(self, x, ctx):
        return self.scale(x + 300 - 300)


@mutant("norm", "autocast")
class DtypeByGradMode(Gained):
    def forward(self, x, ctx):
        y = self.scale(x)
        low = torch.is_autocast_enabled("cpu") and not torch.is_grad_enabled()
        return y.bfloat16() if low else y


@mutant("norm", "magnitude")
class NoEps(Gained):
    def forward(self, x, ctx):
        return x / x.norm(dim=1, keepdim=True) * self.weight


@mutant("norm", "padding_nan")
class NanForAnEmptyRow(NoEps):
    pass


@mutant("norm", "half_overflow")
class SquaresInHalf(Gained):
    def forward(self, x, ctx):
        return x / (x.square().mean(1, keepdim=True) + 1e-6).sqrt() * self.weight


@dataclass(slots=True, kw_only=True)
class AnyEps(Options):
    """An eps of any sign."""

    eps: float = option(1e-6, "added to the mean square")


@dataclass(slots=True, kw_only=True)
class Unread(Options):
    """An option that nobody reads."""

    eps: float = option(1e-6, "added to the mean square", above=0)


@mutant("norm", "nonsense", options=AnyEps())
class NegativeEps(Gained):
    def __init__(self, opts, site):
        super().__init__(opts, site)
        self.eps = opts.eps

    def forward(self, x, ctx):
        return x / (x.square().mean(1, keepdim=True) + self.eps).sqrt() * self.weight


@mutant("norm", "options_matter", options=Unread())
class IgnoresItsOption(Gained):
    pass


@dataclass(slots=True, kw_only=True)
class FalseWhen(Options):
    """An option that has an effect where it says that it has none."""

    offset: float = option(0.0, "added to the gain", when="norm.eps!=1")
    eps: float = option(1e-6, "added to the mean square", above=0)


@mutant("norm", "options_matter", options=FalseWhen())
class AlwaysReads(Gained):
    def __init__(self, opts, site):
        super().__init__(opts, site)
        self.opts = opts

    def forward(self, x, ctx):
        rms = (x.square().mean(1, keepdim=True) + self.opts.eps).sqrt()
        return x / rms * (self.weight + self.opts.offset)


@dataclass(slots=True, kw_only=True)
class NoSuchPlace(Options):
    """An option whose `when` is about nothing."""

    offset: float = option(0.0, "added to the gain", when="norm.epsilon!=1")


@mutant("norm", "options_matter", options=NoSuchPlace())
class NamesNothing(Gained):
    def __init__(self, opts, site):
        super().__init__(opts, site)
        self.offset = opts.offset

    def forward(self, x, ctx):
        return super().forward(x, ctx) * (1 + self.offset)


liar("norm", IgnoresItsOption, "torch_free_catalogue", options=Unread())


@mutant("norm", "rebuild")
class EachDiffers(Gained):
    built = [0]

    def __init__(self, opts, site):
        super().__init__(opts, site)
        self.built[0] += 1
        nn.init.constant_(self.weight, float(self.built[0]))


@mutant("norm", "rebuild", options=RMSNormOptions())
class ChangesItsOptions(Gained):
    def __init__(self, opts, site):
        super().__init__(opts, site)
        opts.eps = opts.eps * 2


@mutant("norm", "neighbours")
class SetsTheDefaultDtype(Gained):
    def __init__(self, opts, site):
        super().__init__(opts, site)
        torch.set_default_dtype(torch.float64)


@mutant("norm", "no_trace")
class TurnsGradientsOff(Gained):
    def forward(self, x, ctx):
        y = self.scale(x)
        torch.set_grad_enabled(False)
        return y


@mutant("norm", "no_trace")
class Prints(Gained):
    def __init__(self, opts, site):
        super().__init__(opts, site)
        print("hello")


@mutant("norm", "compiles", exports=False)
class LooksAtTheData(Gained):
    def forward(self, x, ctx):
        return self.scale(x) if x.numel() == 0 or x.abs().max() < 1e9 else x


liar("norm", LooksAtTheData, "exports", compiles=False)


@mutant("norm", "learns")
class Blind(Gained):
    def forward(self, x, ctx):
        return self.scale(x) * 0


@mutant("norm", "state_dict")
class HiddenWeight(Gained):
    def __init__(self, opts, site):
        super().__init__(opts, site)
        self.hidden = torch.randn(site.d_model).tolist()

    def forward(self, x, ctx):
        return self.scale(x) * x.new_tensor(self.hidden)


@mutant("norm", "copies")
class HoldsALambda(Gained):
    def __init__(self, opts, site):
        super().__init__(opts, site)
        self.act = lambda x: x * 2

    def forward(self, x, ctx):
        return self.act(self.scale(x))


@mutant("norm", "other_device")
class ConstantOnTheCpu(Gained):
    def forward(self, x, ctx):
        return self.scale(x) * torch.arange(1, x.shape[1] + 1, device="cpu")


@mutant("norm", "other_device")
class PlainTensor(Gained):
    def __init__(self, opts, site):
        super().__init__(opts, site)
        self.table = torch.arange(1.0, site.d_model + 1)

    def forward(self, x, ctx):
        return self.scale(x) * self.table.to(x.dtype)


SHARED = nn.Parameter(torch.ones(64))


@mutant("norm", "own_tensors")
class SharedBetweenLayers(Gained):
    def __init__(self, opts, site):
        super().__init__(opts, site)
        self.shared = SHARED

    def forward(self, x, ctx):
        return self.scale(x) * self.shared[: x.shape[1]]


@mutant("norm", "own_tensors")
class TwoNames(Gained):
    def __init__(self, opts, site):
        super().__init__(opts, site)
        self.again = nn.Parameter(self.weight.detach())

    def forward(self, x, ctx):
        return self.scale(x) + self.again


@mutant("norm", "parameters")
class UnusedParameter(Gained):
    def __init__(self, opts, site):
        super().__init__(opts, site)
        self.bias = nn.Parameter(torch.zeros(site.d_model))


# FFNs


@mutant("ffn", "exact", right.glu, options=GLUOptions())
class GateAndUpSwapped(GLU):
    def forward(self, x, ctx):
        return self.down(F.silu(self.up(x)) * self.gate(x))


@mutant("ffn", "exact", right.mlp, options=MLPOptions(act="relu"))
class AnotherActivation(MLP):
    def forward(self, x, ctx):
        return self.down(F.gelu(self.up(x)))


@mutant("ffn", "dropout_in_eval", options=MLPOptions())
class DropsInEval(MLP):
    def forward(self, x, ctx):
        return self.down(F.dropout(F.relu(self.up(x)), self.dropout.p, training=True))


@mutant("ffn", "dropout_is_keyed", options=MLPOptions())
class OneMaskForAllLayers(MLP):
    def __init__(self, opts, site):
        super().__init__(opts, site)
        self.dropout = Dropout(opts.dropout, "ffn")


@mutant("ffn", "dropout_is_keyed", options=MLPOptions())
class DropoutWithoutAKey(MLP):
    def forward(self, x, ctx):
        return self.down(F.dropout(F.relu(self.up(x)), self.dropout.p, self.training))


@mutant("ffn", "dropout_keeps_the_mean", options=MLPOptions())
class DropoutWithoutScale(MLP):
    def forward(self, x, ctx):
        dropped = self.dropout(F.relu(self.up(x)), ctx)
        return self.down(dropped * (1 - self.dropout.rate))


@mutant("ffn", "layers_differ", options=MLPOptions())
class OneSeedForAllLayers(MLP):
    owns_init = True

    def __init__(self, opts, site):
        torch.manual_seed(0)
        super().__init__(opts, site)


MIXTURE = MoEOptions()
liar("ffn", MLP, "parameters", options=MLPOptions(), sparse=True)
liar("ffn", MoE, "parameters", options=MIXTURE)


@mutant("ffn", "parameters_of_many", options=MIXTURE, sparse=True)
class AnExpertThatIsNeverChosen(MoE):
    def odds(self, x):
        return super().odds(x) * (torch.arange(8) < 7).to(x.dtype)


@mutant("ffn", "exact", right.moe, MIXTURE, sparse=True)
class AllExpertsAlike(MoE):
    """The router chooses, and does not weigh."""

    def odds(self, x):
        odds = super().odds(x)
        return odds + (0.25 - odds).detach()


@mutant("ffn", "layouts", options=MIXTURE, sparse=True)
class BalancesThePadding(MoE):
    def forward(self, x, ctx):
        y = super().forward(x, replace(ctx, out=SILENT))
        ctx.out.loss("balance", self.odds(x).mean(0).square().sum())
        return y


@mutant("ffn", "options_matter", options=MIXTURE, sparse=True)
class BalancesNothing(MoE):
    def forward(self, x, ctx):
        return super().forward(x, replace(ctx, out=SILENT))


# Inits


liar("init", Xavier, "scale", fixed_scale=True)


@mutant("init", "fills")
class ForgetsTheBias(Xavier):
    def bias(self, t, fan_in, generator):
        pass


@mutant("init", "draws_from_its_generator")
class GlobalDraws(Xavier):
    def weight(self, t, generator):
        t.normal_(0, (2 / sum(t.shape)) ** 0.5)


@mutant("init", "differs")
class Constant(Init):
    def weight(self, t, generator):
        t.fill_(0.1)

    def bias(self, t, fan_in, generator):
        t.zero_()

    embedding = weight


@mutant("init", "scale")
class KnowsNoWidth(Xavier):
    def weight(self, t, generator):
        t.normal_(0, 1, generator=generator)
