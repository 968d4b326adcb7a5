"""What the built-in parts compute, in float64 and plain loops; written from the papers' equations.

Each takes (module, x (N, D), lengths); for placements and positions the module is the kit's bench.
"""

from __future__ import annotations

import math

import torch

from encoderkit.testing import softmax_attention

EPS = 1e-6


def layernorm(norm, x, lengths):
    rows = []
    for row in x:
        mean = sum(row) / len(row)
        variance = sum((value - mean) ** 2 for value in row) / len(row)
        scaled = torch.stack([(value - mean) / (variance + EPS) ** 0.5 for value in row])
        rows.append(scaled * norm.weight + norm.bias)
    return torch.stack(rows)


def rmsnorm(norm, x, lengths, offset=0):
    rows = []
    for row in x:
        square = sum(value * value for value in row) / len(row)
        scaled = torch.stack([value / (square + EPS) ** 0.5 for value in row])
        rows.append(scaled * norm.weight + scaled * offset)
    return torch.stack(rows)


def batchnorm(norm, x, lengths):
    channels = []
    for n, column in enumerate(x.unbind(1)):
        if norm.training:
            mean = sum(column) / len(column)
            variance = sum((value - mean) ** 2 for value in column) / len(column)
        else:
            mean, variance = norm.running_mean[n], norm.running_var[n]
        channels.append((column - mean) / (variance + EPS) ** 0.5 * norm.weight[n] + norm.bias[n])
    return torch.stack(channels, 1)


def scalenorm(norm, x, lengths):
    rows = []
    for row in x:
        length = sum(value * value for value in row) ** 0.5
        rows.append(norm.gain * row / (length if length > 1e-3 else 1e-3))
    return torch.stack(rows)


def dyt(norm, x, lengths):
    e = torch.exp(2 * norm.alpha * x)
    return norm.gamma * (e - 1) / (e + 1) + norm.beta


def derf(norm, x, lengths):
    """erf(z) = 2 / sqrt(pi) exp(-z^2) (z + 2 z^3 / 3 + 4 z^5 / 15 + ...), 1 to 1e-19 at 6.5."""
    z = (norm.alpha * x + norm.shift).clamp(-6.5, 6.5)
    term = total = z
    for n in range(1, 250):
        term = term * 2 * z * z / (2 * n + 1)
        total = total + term
    return norm.gamma * (2 / math.pi**0.5 * torch.exp(-z * z) * total) + norm.beta


def same(norm, x, lengths):
    return x * 1


def plain_norm(x):
    """Return what the norm that `make_site` builds computes: eps 1e-5, no gain."""
    centred = x - x.mean(1, keepdim=True)
    return centred / ((centred**2).mean(1, keepdim=True) + 1e-5) ** 0.5


def branch(bench, x, lengths, rotate=None, bias=None):
    """Return what the bench's own attention computes, with positions in q and k or on scores."""
    q, k, v = (x @ weight for weight in bench.mix.maps)
    heads = bench.mix.heads
    width = x.shape[1] // heads
    rows, start = [], 0
    for length in lengths:
        for i in range(length):
            row = []
            for h in range(heads):
                own = slice(h * width, (h + 1) * width)
                scores = []
                for j in range(length):
                    a, b = q[start + i, own], k[start + j, own]
                    if rotate:
                        a, b = rotate(a, i), rotate(b, j)
                    added = bias(h, i, j) if bias else 0
                    scores.append((a * b).sum() / width**0.5 + added)
                weights = torch.stack(scores).exp()
                row.append((weights / weights.sum()) @ v[start : start + length, own])
            rows.append(torch.cat(row))
        start += length
    return torch.stack(rows)


def pre(bench, x, lengths):
    return x + branch(bench, plain_norm(x), lengths)


def post(bench, x, lengths):
    return plain_norm(x + branch(bench, x, lengths))


def sandwich(bench, x, lengths):
    return x + plain_norm(branch(bench, plain_norm(x), lengths))


def reordered(bench, x, lengths):
    return x + plain_norm(branch(bench, x, lengths))


def layerscale(bench, x, lengths):
    found = branch(bench, plain_norm(x), lengths)
    scaled = [found[:, n] * bench.part.gain[n] for n in range(x.shape[1])]
    return x + torch.stack(scaled, 1)


def deepnorm(bench, x, lengths):
    return plain_norm(2**0.5 * x + branch(bench, x, lengths))  # alpha of two layers


def residual2(bench, x, lengths):
    found = branch(bench, x, lengths)
    return plain_norm(x + found) + (x + found)


def rezero(bench, x, lengths):
    return x + bench.part.gain * branch(bench, x, lengths)


def no_residual(bench, x, lengths):
    return plain_norm(branch(bench, x, lengths))


def _linear(layer, x):
    y = torch.stack([(layer.weight * row).sum(1) for row in x])
    return y if layer.bias is None else y + layer.bias


def mlp(ffn, x, lengths):
    inner = _linear(ffn.up, x)
    return _linear(ffn.down, torch.where(inner > 0, inner, 0.0))


def glu(ffn, x, lengths):
    gate = _linear(ffn.gate, x)
    return _linear(ffn.down, gate / (1 + torch.exp(-gate)) * _linear(ffn.up, x))


def no_position(bench, x, lengths):
    return x + branch(bench, x, lengths)


def sinusoidal(bench, x, lengths):
    d, rows = x.shape[1], []
    for length in lengths:
        for p in range(length):
            angles = [p / 10000 ** (2 * (c // 2) / d) for c in range(d)]
            trig = [math.sin(a) if c % 2 == 0 else math.cos(a) for c, a in enumerate(angles)]
            rows.append(torch.tensor(trig, dtype=x.dtype))
    return no_position(bench, x + torch.stack(rows), lengths)


def sinusoidal_half(bench, x, lengths):
    d, rows = x.shape[1], []
    sines = (d + 1) // 2
    for length in lengths:
        for p in range(length):
            first = [math.sin(p / 10000 ** (2 * i / d)) for i in range(sines)]
            second = [math.cos(p / 10000 ** (2 * i / d)) for i in range(d - sines)]
            rows.append(torch.tensor(first + second, dtype=x.dtype))
    return no_position(bench, x + torch.stack(rows), lengths)


def learned(bench, x, lengths):
    at = [p for length in lengths for p in range(length)]
    return no_position(bench, x + torch.stack([bench.part.table.weight[p] for p in at]), lengths)


def rope(bench, x, lengths):
    def rotate(head, p):
        half = len(head) // 2
        pairs = [complex(0, p * 10000.0 ** (-i / half)) for i in range(half)]
        turn = torch.tensor([[math.cos(z.imag), math.sin(z.imag)] for z in pairs], dtype=x.dtype)
        a, b = head[:half], head[half:]
        return torch.cat([a * turn[:, 0] - b * turn[:, 1], a * turn[:, 1] + b * turn[:, 0]])

    return x + branch(bench, x, lengths, rotate)


def rope_interleaved(bench, x, lengths):
    """Each pair of neighbours is a complex number, times e^(i p theta^(-2j/K))."""

    def rotate(head, p):
        whole, kept = len(head), list(head)
        for j in range(whole // 2):
            angle = p * 10000.0 ** (-2 * j / whole)
            a, b = head[2 * j], head[2 * j + 1]
            kept[2 * j] = a * math.cos(angle) - b * math.sin(angle)
            kept[2 * j + 1] = a * math.sin(angle) + b * math.cos(angle)
        return torch.stack(kept)

    return x + branch(bench, x, lengths, rotate)


def linear(attention, x, lengths):
    """Each query's weights are phi(q) phi(k), divided by their sum."""
    q, k, v = (_linear(layer, x) for layer in (attention.q, attention.k, attention.v))
    width = x.shape[1] // attention.heads
    rows, start = [], 0
    for length in lengths:
        for i in range(start, start + length):
            heads = []
            for h in range(attention.heads):
                own = slice(h * width, (h + 1) * width)
                weights = [(_phi(q[i, own]) * _phi(k[start + j, own])).sum() for j in range(length)]
                total = sum(weights)
                heads.append(sum(w / total * v[start + j, own] for j, w in enumerate(weights)))
            rows.append(torch.cat(heads))
        start += length
    return _linear(attention.out, torch.stack(rows))


def _phi(x):
    return torch.stack([value + 1 if value > 0 else torch.exp(value) for value in x])


def fnet(mixer, x, lengths):
    """Re sum_j,c x[j, c] e^(-2 pi i (j p / T + c d / D)), term by term."""
    width = x.shape[1]
    rows, start = [], 0
    for length in lengths:
        for p in range(length):
            row = []
            for d in range(width):
                angles = [
                    [2 * math.pi * (j * p / length + c * d / width) for c in range(width)]
                    for j in range(length)
                ]
                cosines = torch.tensor(angles, dtype=torch.float64).cos()
                row.append((x[start : start + length] * cosines).sum())
            rows.append(torch.stack(row))
        start += length
    return torch.stack(rows)


def alibi(bench, x, lengths):
    """Slopes for two and three heads, as published: 1/16 and 1/256, then 1/4."""
    slopes = [0.0625, 0.00390625, 0.25]
    return x + branch(bench, x, lengths, bias=lambda h, i, j: -slopes[h] * abs(i - j))


def t5_bucket(offset, buckets=32, max_distance=128):
    """Return the bucket of j - i, by looking for the interval that its distance is in.

    Of 16 buckets a side the first 8 are 0 to 7; the borders of the others grow by one factor from 8
    to max_distance.
    """
    side = buckets // 2
    exact = side // 2
    distance, base = abs(offset), side if offset > 0 else 0
    if distance < exact:
        return base + distance
    factor = (max_distance / exact) ** (1 / (side - exact))
    bucket, border = exact, exact * factor
    while bucket < side - 1 and distance >= border - 1e-9:
        bucket, border = bucket + 1, border * factor
    return base + bucket


def t5(bench, x, lengths):
    table = bench.part.table.weight
    return x + branch(bench, x, lengths, bias=lambda h, i, j: table[t5_bucket(j - i), h])


def _softmax(row):
    powers = [torch.exp(value) for value in row]
    return [power / sum(powers) for power in powers]


def moe(ffn, x, lengths):
    """Return the mixture, one token at a time: the two likeliest of all experts, found by sorting.

    gelu(z) = z (1 + erf(z / sqrt 2)) / 2
    """
    rows = []
    for row in x:
        odds = _softmax([(w * row).sum() for w in ffn.router.weight])
        best = sorted(range(len(odds)), key=lambda e: -odds[e].item())[:2]
        made = 0
        for e in best:
            inner = ffn.experts[e].up.weight @ row
            inner = inner * (1 + torch.erf(inner / 2**0.5)) / 2
            made = made + odds[e] * (ffn.experts[e].down.weight @ inner)
        rows.append(made)
    return torch.stack(rows)


REFERENCES = {
    "norm=layernorm": layernorm,
    "norm=rmsnorm": rmsnorm,
    "norm=batchnorm": batchnorm,
    "norm=scalenorm": scalenorm,
    "norm=dyt": dyt,
    "norm=derf": derf,
    "norm=none": same,
    "placement=pre": pre,
    "placement=post": post,
    "placement=sandwich": sandwich,
    "placement=reordered": reordered,
    "placement=layerscale": layerscale,
    "placement=deepnorm": deepnorm,
    "placement=residual2": residual2,
    "placement=rezero": rezero,
    "placement=none": no_residual,
    "ffn=mlp": mlp,
    "ffn=glu": glu,
    "ffn=moe": moe,
    "attention=naive": softmax_attention,
    "attention=sdpa": softmax_attention,
    "attention=flex": softmax_attention,
    "attention=flash": softmax_attention,
    "attention=linear": linear,
    "attention=fnet": fnet,
    "position=none": no_position,
    "position=sinusoidal": sinusoidal,
    "position=learned": learned,
    "position=rope": rope,
    "position=alibi": alibi,
    "position=t5": t5,
}
