"""Wrong parts: attentions, positions, placements, tasks."""

from __future__ import annotations

import kit_noisy
import kit_references as right
import torch
import torch.nn.functional as F
from kit_mutants import liar, mutant

from encoderkit.nn import Placement, Position, Tables, by_sequence
from encoderkit.testing import softmax_attention
from encoderkit_builtin.attentions import Naive
from encoderkit_builtin.catalogue_attentions import AttentionOptions
from encoderkit_builtin.catalogue_positions import LearnedOptions, RoPEOptions, T5Options
from encoderkit_builtin.catalogue_tasks import SortOptions
from encoderkit_builtin.placements import DeepNorm, Post, Pre, Residual2
from encoderkit_builtin.positions import T5, ALiBi, Learned, NoPosition, RoPE, Sinusoidal
from encoderkit_builtin.tasks import Sort

ATTENTION, ROPE = AttentionOptions(), RoPEOptions()
mutant("norm", "clean_import")(kit_noisy.Noisy)
liar("attention", Naive, "softmax", options=ATTENTION, own_maths=True)
liar("attention", Naive, "reads_position", options=ATTENTION, serves=frozenset({"bias"}))
liar("position", Learned, "shift", options=LearnedOptions(), order_aware=True)
liar("position", RoPE, "shift", options=ROPE, order_aware=True, approximate=1e-5, absolute=True)
liar("position", NoPosition, "order_of_tokens", order_aware=True)
liar("position", RoPE, "order_of_tokens", options=ROPE, approximate=1e-5)
liar("position", RoPE, "exact", right.rope, options=ROPE, order_aware=True)


class WithoutOptions(Naive):
    """Attention that takes no options at all."""

    def __init__(self, opts, site):
        super().__init__(ATTENTION, site)


SERVED = frozenset({"rotation", "bias", "window", "softcap", "dropout", "weights"})


class Scored(Naive):
    """Attention whose scores, weights and keys can be got wrong one by one."""

    def attend(self, q, k, v, ctx):
        def kernel(q, k, v, keys, bias):
            scores = self.scores(q @ k.transpose(2, 3), q.shape[3], ctx)
            return self.weights(self.masked(scores, keys, ctx)).to(v.dtype) @ v

        return by_sequence(kernel, q, k, v, ctx)

    def scores(self, scores, width, ctx):
        return scores * width**-0.5

    def masked(self, scores, keys, ctx):
        return scores if keys is None else scores.masked_fill(~keys, float("-inf"))

    def weights(self, scores):
        return scores.softmax(3)


@mutant("attention", "exact", softmax_attention, options=ATTENTION)
class NoScale(Scored):
    def scores(self, scores, width, ctx):
        return scores


@mutant("attention", "softmax", options=ATTENTION)
class SoftmaxOverQueries(Scored):
    def weights(self, scores):
        return scores.softmax(2)


@mutant("attention", "softmax", options=ATTENTION)
class Sigmoid(Scored):
    def weights(self, scores):
        return scores.sigmoid()


@mutant("attention", "order_of_tokens", options=ATTENTION)
class Causal(Scored):
    def masked(self, scores, keys, ctx):
        later = torch.ones(scores.shape[2:], dtype=torch.bool).triu(1)
        return super().masked(scores, keys, ctx).masked_fill(later, float("-inf"))


@mutant("attention", "batch_mates_eval", options=ATTENTION)
class AcrossSequences(Scored):
    def attend(self, q, k, v, ctx):
        return F.scaled_dot_product_attention(*(t.transpose(0, 1) for t in (q, k, v))).transpose(
            0, 1
        )


@mutant("attention", "layouts", options=ATTENTION)
class IgnoresKeys(Scored):
    def masked(self, scores, keys, ctx):
        return scores


@mutant("attention", "padding_content", options=ATTENTION)
class SoftMask(Scored):
    def masked(self, scores, keys, ctx):
        return scores if keys is None else scores.masked_fill(~keys, -1e4)


@mutant("attention", "padding_content", options=ATTENTION)
class SoftestMask(Scored):
    def masked(self, scores, keys, ctx):
        low = torch.finfo(scores.dtype).min / 2
        return scores if keys is None else scores + (~keys).to(scores.dtype) * low


@mutant("attention", "padding_length", options=ATTENTION)
class ScaledByThePaddedLength(Scored):
    def scores(self, scores, width, ctx):
        return scores * width**-0.5 * (1 + ctx.max_len * (ctx.layout == "dense"))


@mutant("attention", "padded_row", options=ATTENTION)
class NanForNoKeys(Scored):
    def masked(self, scores, keys, ctx):
        if ctx.valid is None:
            return scores
        return scores.masked_fill(~ctx.valid[:, None, None, :], float("-inf"))


@mutant("attention", "reads_position", options=ATTENTION)
class IgnoresPosition(Naive):
    def forward(self, x, ctx):
        q, k, v = (w(x).unflatten(1, (self.heads, -1)) for w in (self.q, self.k, self.v))
        return self.out(self.attend(q, k, v, ctx).flatten(1))


@mutant("attention", "serves_bias", options=ATTENTION, serves=frozenset({"rotation", "bias"}))
class ForgetsTheBias(Scored):
    pass


@mutant("attention", "serves_bias", options=ATTENTION, serves=frozenset({"rotation", "bias"}))
class BiasForTheFirstHead(Naive):
    def biases(self, ctx):
        return [b * (torch.arange(b.shape[1]) == 0)[:, None, None] for b in super().biases(ctx)]


@mutant("attention", "serves_window", options=ATTENTION, serves=frozenset({"rotation", "window"}))
class ForgetsTheWindow(Scored):
    pass


@mutant("attention", "serves_window", options=ATTENTION, serves=frozenset({"rotation", "window"}))
class WindowOfTheLeft(Scored):
    def masked(self, scores, keys, ctx):
        n = scores.shape[3]
        far = torch.ones(n, n, dtype=torch.bool)
        hidden = far.triu(1) | far.tril(-1 - (self.window or n))
        return scores.masked_fill(hidden, float("-inf"))


@mutant("attention", "serves_window", options=ATTENTION, serves=frozenset({"rotation", "window"}))
class WindowByPlace(Scored):
    def masked(self, scores, keys, ctx):
        n = scores.shape[3]
        far = torch.ones(n, n, dtype=torch.bool)
        reach = self.window or n
        return scores.masked_fill(far.triu(1 + reach) | far.tril(-1 - reach), float("-inf"))


@mutant("attention", "serves_window", options=ATTENTION, serves=frozenset({"rotation", "window"}))
class WindowOneTooWide(Naive):
    def __init__(self, opts, site):
        super().__init__(opts, site)
        self.window = None if opts.window is None else opts.window + 1


mutant("attention", "serves_window", serves=frozenset({"rotation", "window"}))(WithoutOptions)


@mutant("attention", "serves_softcap", options=ATTENTION, serves=frozenset({"rotation", "softcap"}))
class Clamped(Scored):
    def scores(self, scores, width, ctx):
        scores = scores * width**-0.5
        return scores if self.softcap is None else scores.clamp(-self.softcap, self.softcap)


@mutant("attention", "serves_softcap", options=ATTENTION, serves=frozenset({"rotation", "softcap"}))
class CappedWithoutItsSize(Scored):
    def scores(self, scores, width, ctx):
        scores = scores * width**-0.5
        return scores if self.softcap is None else (scores / self.softcap).tanh()


@mutant("attention", "serves_weights", options=ATTENTION, serves=frozenset({"rotation", "weights"}))
class RecordsScores(Scored):
    def weights(self, scores):
        self.ctx.out.each("layers.0.attention", scores)
        return super().weights(scores)

    def attend(self, q, k, v, ctx):
        self.ctx = ctx
        return super().attend(q, k, v, ctx)


@mutant("attention", "serves_weights", options=ATTENTION, serves=frozenset({"rotation", "weights"}))
class RecordsNothing(Scored):
    pass


@mutant("attention", "serves_dropout", options=ATTENTION, serves=frozenset({"rotation", "dropout"}))
class ForgetsDropout(Scored):
    pass


SOME = SERVED - {"weights"}
liar("attention", Naive, "serves_weights", options=ATTENTION, serves=SOME)
liar("attention", Naive, "serves_bias", options=ATTENTION, serves=SERVED - {"bias"})
liar("attention", Naive, "elsewhere", options=ATTENTION, devices=frozenset({"cuda"}))
liar("attention", Naive, "elsewhere", options=ATTENTION, precisions=frozenset({"float64"}))


@mutant("attention", "sizes", options=ATTENTION)
class OneHeadWidth(Naive):
    def attend(self, q, k, v, ctx):
        return super().attend(q, k, v, ctx).reshape(-1, self.heads, 2)


@mutant("position", "low_precision", order_aware=True, absolute=True, approximate=1e-5)
class TablesInTheModelsDtype(Position):
    def embed(self, x, ctx):
        angles = ctx.positions[:, None].to(x.dtype) * torch.arange(1, x.shape[1] + 1).to(x)
        return x + angles.sin()


@mutant("position", "low_precision", order_aware=True, absolute=True, approximate=1e-5)
class FrequenciesInABuffer(Position):
    def __init__(self, opts, site):
        super().__init__()
        self.register_buffer("frequencies", torch.linspace(0.1, 0.9, site.d_model))

    def embed(self, x, ctx):
        return x + (ctx.positions[:, None] * self.frequencies).sin().to(x.dtype)


@mutant("position", "given_positions", order_aware=True, absolute=True, approximate=1e-5)
class CountsForItself(Sinusoidal):
    def embed(self, x, ctx):
        places = torch.cat([torch.arange(n) for n in ctx.lengths or [len(x)]])
        return x + places[:, None].to(x.dtype)


@mutant("position", "batch_mates_eval", order_aware=True, absolute=True)
class CountsThroughTheBatch(Position):
    def embed(self, x, ctx):
        return x + torch.arange(len(x), device=x.device)[:, None].to(x.dtype)


@mutant("position", "exact", right.rope, options=ROPE, order_aware=True)
class Interleaved(RoPE):
    def prepare(self, ctx):
        half = super().prepare(ctx)

        class Other(Tables):
            def rotate(self, q, k):
                return tuple(half.turn(t.flip(2)).flip(2) for t in (q, k))

        return Other()


class Biased(Tables):
    def __init__(self, held):
        self.held = held

    def biases(self, layer):
        return self.held


@mutant("position", "exact", right.alibi, order_aware=True, needs=frozenset({"bias"}))
class SlopesFromOne(ALiBi):
    """The other recipe: 2^(-8 (h - 1) / H)."""

    def prepare(self, ctx):
        return Biased([16 * bias for bias in super().prepare(ctx).held])


@mutant("position", "given_positions", order_aware=True, needs=frozenset({"bias"}))
class DistanceInTheBatch(ALiBi):
    """Counts rows, whatever the positions say."""

    def prepare(self, ctx):
        found = []
        for rows in ctx.rows():
            at = torch.arange(rows.shape[1])
            away = (at[None] - at[:, None]).clamp(min=0)
            found.append((-away.double() * torch.tensor(self.slopes)[:, None, None])[None])
        return Biased(found)


@mutant("position", "exact", right.t5, T5Options(), order_aware=True, needs=frozenset({"bias"}))
class BucketsOfOneSide(T5):
    """Takes a key before for one after."""

    def prepare(self, ctx):
        return Biased([b.transpose(2, 3) for b in super().prepare(ctx).biases(0)])


@mutant("position", "parameters", options=LearnedOptions(), order_aware=True, absolute=True)
class TableWithoutGradient(Learned):
    def embed(self, x, ctx):
        return x + self.table(ctx.positions).detach()


@mutant("placement", "branch_once")
class CallsTwice(Pre):
    def forward(self, x, f, ctx):
        f(self.before(x, ctx), ctx)
        return super().forward(x, f, ctx)


@mutant("placement", "branch_matters")
class ForgetsTheBranch(Post):
    def forward(self, x, f, ctx):
        return self.after(x + 0 * f(x, ctx), ctx)


@mutant("placement", "exact", right.pre)
class NormAfterTheSum(Pre):
    def forward(self, x, f, ctx):
        return self.before(x + f(x, ctx), ctx)


@mutant("placement", "exact", right.post)
class ForgetsTheResidual(Post):
    def forward(self, x, f, ctx):
        return self.after(f(x, ctx), ctx)


@mutant("placement", "exact", right.residual2)
class OneStream(Residual2):
    """The second stream follows the first."""

    def forward(self, x, f, ctx):
        post = super().forward(x, f, ctx)[:, 0]
        return torch.stack([post, post], 1)


@mutant("placement", "exact", right.deepnorm)
class AlphaOfTheBranch(DeepNorm):
    def forward(self, x, f, ctx):
        return self.after(x + self.alpha * f(x, ctx), ctx)


@mutant("placement", "branch_once")
class NewContext(Placement):
    def forward(self, x, f, ctx):
        import copy

        return x + f(x, copy.copy(ctx))


SORT = SortOptions(length=6, eval_sequences=70)


@mutant("task", "batches_repeat", options=SORT)
class AStream(Sort):
    def batch(self, k, size):
        self.asked = getattr(self, "asked", 0) + 1
        return super().batch(self.asked, size)


@mutant("task", "batches_repeat", options=SORT)
class GlobalBatches(Sort):
    def batch(self, k, size):
        return self._draw(size, torch.default_generator)


@mutant("task", "batches_differ", options=SORT)
class OneBatch(Sort):
    def batch(self, k, size):
        return super().batch(0, size)


@mutant("task", "one_evaluation", options=SORT)
class EvaluationBySeed(Sort):
    def draws(self, split, k):
        return torch.Generator().manual_seed(self.seed * 1000 + k)


@mutant("task", "fits", options=SORT)
class TargetOutside(Sort):
    def __init__(self, opts, seed):
        super().__init__(opts, seed)
        self.outputs -= 1


@mutant("task", "sums", options=SORT)
class MeanLoss(Sort):
    def loss(self, logits, batch):
        return F.cross_entropy(logits, batch.targets)
