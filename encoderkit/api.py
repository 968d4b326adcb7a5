"""The door for plugin authors. Nothing here imports torch.

A plugin is a module with two things in it: `API_VERSION`, the `VERSION` below that it was written
for, and one or both of the hooks of `Hooks`, marked with `@hookimpl`. It is found through the
entry-point group `encoderkit.plugins`.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import math
import numbers
import re
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypedDict, Union, Unpack, get_args, get_origin

import pluggy

VERSION = 1

Kind = Literal["norm", "placement", "ffn", "attention", "position", "init", "task"]
KINDS: tuple[Kind, ...] = get_args(Kind)

Layout = Literal["packed", "dense"]
Capability = Literal["rotation", "bias", "window", "softcap", "dropout", "weights"]
Device = Literal["cpu", "cuda"]
Precision = Literal["float64", "float32", "bfloat16", "float16"]

hookspec = pluggy.HookspecMarker("encoderkit")
hookimpl = pluggy.HookimplMarker("encoderkit")


@dataclass(slots=True, kw_only=True)
class Options:
    """The base of every part's own options: one `option(...)` a field, and nothing else.

    Field types: bool, int, float, str, each also as `X | None`, `list[X]` and `dict[str, X]`.
    """


_WORDS = {bool: "true or false", int: "an integer", float: "a finite number", str: "text"}


def is_option_type(hint: Any) -> bool:
    """Tell whether a field of `Options` may have this type."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return all(item is types.NoneType or is_option_type(item) for item in inner)
    if origin is list:
        return inner[0] in _WORDS
    if origin is dict:
        return inner[0] is str and inner[1] in _WORDS
    return hint in _WORDS


def fit(value: Any, hint: Any) -> Any:
    """Return `value` as the type `hint`, without guessing.

    Errors: TypeError with what the value must be, in words.
    """
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        wanted = []
        for item in inner:
            try:
                return fit(value, item)
            except TypeError as error:
                wanted.append(str(error))
        raise TypeError(" or ".join(wanted))
    try:
        if origin is list and isinstance(value, list | tuple):
            return [fit(item, inner[0]) for item in value]
        if origin is dict and isinstance(value, Mapping):
            return {str(key): fit(item, inner[1]) for key, item in value.items()}
    except TypeError:
        pass  # then the whole is what is wrong
    if hint is types.NoneType:
        if value is None:
            return None
        raise TypeError("null")
    if origin is list:
        raise TypeError(f"a list, each item {_WORDS[inner[0]]}")
    if origin is dict:
        raise TypeError(f"a mapping, each value {_WORDS[inner[1]]}")
    return _scalar(value, hint)


def _scalar(value: Any, hint: Any) -> Any:
    """Return a single value as bool, int, float or str; numpy's numbers count as numbers."""
    if hint in (bool, str) and isinstance(value, hint):
        return value
    number: int | float
    if isinstance(value, bool):
        raise TypeError(_WORDS[hint])
    if hint is int and isinstance(value, numbers.Integral):
        number = int(value)
        if -(2**63) <= number < 2**63:
            return number
        raise TypeError("an integer of at most 64 bits")
    if hint is float and isinstance(value, numbers.Real):
        try:
            number = float(value)
        except OverflowError:  # an integer beyond the floats
            number = math.inf
        if math.isfinite(number):
            return number
    raise TypeError(_WORDS[hint])


class Bounds(TypedDict, total=False):
    """The bounds of a `Range`."""

    above: float
    at_least: float
    below: float
    at_most: float


@dataclass(frozen=True, slots=True)
class Range:
    """What values an option takes, beside its type."""

    above: float | None = None
    at_least: float | None = None
    below: float | None = None
    at_most: float | None = None
    choices: tuple[str, ...] | None = None

    def refusal(self, value: Any) -> str:
        """Return what is wrong with `value`, in words, or an empty string."""
        if self.choices is not None and value not in self.choices:
            return f"must be one of {', '.join(self.choices)}"
        # Each bound is tested as "not (value inside)", so that NaN is refused too.
        if self.above is not None and not value > self.above:
            return f"must be above {self.above:g}"
        if self.at_least is not None and not value >= self.at_least:
            return f"must be at least {self.at_least:g}"
        if self.below is not None and not value < self.below:
            return f"must be below {self.below:g}"
        if self.at_most is not None and not value <= self.at_most:
            return f"must be at most {self.at_most:g}"
        return ""


_CONDITION = re.compile(r"(\w+\.\w+)(!?=)(\S+)")
_HEADS = (*KINDS, "model", "train", "run", "sweep")


@dataclass(frozen=True, slots=True)
class Condition:
    """One word of an option's `when`: a path that must have a value, or must not."""

    path: str
    equal: bool
    value: str

    def holds(self, value: Any) -> bool:
        """Tell whether it is so where the path has `value`."""
        if value is None or isinstance(value, bool):
            same = self.value == {None: "null", True: "true", False: "false"}[value]
        else:
            same = self.value == str(value)
            with contextlib.suppress(TypeError, ValueError):
                same = same or float(self.value) == float(value)
        return same == self.equal


def conditions(when: str) -> list[Condition]:
    """Return the words of an option's `when`, all of which must hold.

    Errors: ValueError with what is wrong, in words.
    """
    found = []
    for word in when.split(" and "):
        match = _CONDITION.fullmatch(word.strip())
        if match is None or match[1].partition(".")[0] not in _HEADS:
            raise ValueError(
                f"its when={when!r} must be path=value or path!=value, such as "
                "'position.width!=2', several joined with ' and '"
            )
        found.append(Condition(match[1], match[2] == "=", match[3]))
    return found


def option(
    default: Any,
    doc: str,
    *,
    choices: tuple[str, ...] | None = None,
    needs: Capability | None = None,
    when: str | None = None,
    **bounds: Unpack[Bounds],
) -> Any:
    """Declare one option: its default, its line of documentation and its range, as in `Range`.

    A default of `...` makes the option required. Lists and mappings are copied for each instance.
    `needs` is what an attention must be able to do (`Traits.serves`) once the option is set to
    anything but null, false or 0. `when` says where the option has an effect, as `conditions` reads
    it: "position.width!=2", "ffn.part=glu and train.schedule!=constant"; elsewhere, whoever sets
    the option is told so. In a rule for some layers the paths mean what stands in those layers.
    """
    allowed = Range(choices=choices, **bounds)
    about = {"doc": doc, "range": allowed, "needs": needs, "when": when}
    if default is ...:
        return field(metadata=about)
    if isinstance(default, list | dict):
        return field(default_factory=lambda: copy.copy(default), metadata=about)
    return field(default=default, metadata=about)


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What a part declares about itself, where it differs from the usual; a false one is a fault.

    `encoderkit.testing` examines each: undeclared, what a trait says must not be so; declared, it
    must be.
    """

    layouts: frozenset[Layout] = frozenset({"packed", "dense"})
    batch_coupled: bool = False  # in training, a token's output depends on the other sequences
    train_and_eval_differ: bool = False  # without any dropout too
    has_buffers: bool = False  # training moves buffers that evaluation reads
    stochastic: bool = False  # draws in training with its usual options, keyed by the step
    min_tokens_in_train: int = 1  # fewer are refused with an InputError
    order_aware: bool = False  # depends on the order of a sequence's tokens
    absolute: bool = False  # depends on where a sequence's positions start
    needs: frozenset[Capability] = frozenset()  # position: what the attention must be able to do
    # Attention: what it can do. rotation: turned q and k; bias: what positions add to the scores;
    # weights: it records them.
    serves: frozenset[Capability] = frozenset({"rotation"})
    devices: frozenset[Device] = frozenset({"cpu", "cuda"})  # where it runs
    precisions: frozenset[Precision] = frozenset({"float64", "float32", "bfloat16", "float16"})
    own_maths: bool = False  # attention: something else than softmax(q k^T / sqrt(K)) v
    approximate: float = 0.0  # the largest difference to its reference, in float64
    differentiable: bool = True
    checkpoint_safe: bool = True  # a second forward for the gradient changes nothing
    compiles: bool = True  # as one graph, in the dense layout
    exports: bool = True  # with any batch size and length, in the dense layout
    frozen: tuple[str, ...] = ()  # parameters that get no gradient
    sparse: bool = False  # a token reaches some of the parameters only
    fixed_scale: bool = False  # init: weights do not scale with the width


@dataclass(frozen=True, slots=True)
class Part:
    """One choice of one kind: its name, where its code is, its options, a line of text.

    `target` is "module:attribute", imported when the part is first built; `None` means that the
    choice takes its sublayer away.
    """

    kind: Kind
    name: str
    target: str | None
    summary: str
    options: type[Options] = Options
    traits: Traits = dataclasses.field(default_factory=Traits)


class Hooks:
    """All hooks there are."""

    @hookspec
    def encoderkit_parts(self) -> Iterable[Part]:  # type: ignore[empty-body]
        """Return the parts that this plugin adds."""

    @hookspec
    def encoderkit_presets(self) -> Path:  # type: ignore[empty-body]
        """Return a directory with one folder a kind, each with presets as YAML files."""
