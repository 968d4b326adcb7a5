"""What stands in each layer: its sublayers, and the rules that change parts of some layers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from encoderkit.config.schema import Chosen, Config, Rule
from encoderkit.errors import Fault, nearest

BRANCHES = ("attention", "ffn")
RULED = ("norm", "placement", "ffn", "attention", "position")
_SLICE = re.compile(r"(-?\d+)?:(-?\d+)?(?::(-?\d+)?)?", re.ASCII)
_TERM = re.compile(r"(?:(\d+(?:\.\d+)?)\*)?([a-z]+(?:\+[a-z]+)*)", re.ASCII)

_FORM = "must be a layer's number, a list of them, or start:stop:step."
Choose = Callable[[str, Any, str], Chosen | None]


@dataclass(frozen=True, slots=True)
class Term:
    """One sublayer as `model.sublayers` writes it: 0.5*ffn, or the parallel pair attention+ffn."""

    slot: str
    kinds: tuple[str, ...]
    scale: float

    @property
    def paired(self) -> bool:
        """Tell whether this is a parallel pair, or what `none` has left of one."""
        return len(set(self.slot.split("_")) & set(BRANCHES)) > 1


def terms(sublayers: Sequence[str]) -> list[Term]:
    """Return the sublayers of a layer; the second of one name counts: ffn_2.

    Errors: ValueError with what is wrong, in words.
    """
    found: list[Term] = []
    for text in sublayers:
        match = _TERM.fullmatch(text.replace(" ", ""))
        kinds = tuple(match[2].split("+")) if match else ()
        if match is None or not set(kinds) <= set(BRANCHES) or len(set(kinds)) < len(kinds):
            raise ValueError(
                f"a sublayer is attention, ffn, the parallel pair attention+ffn, or one of them "
                f"scaled, such as 0.5*ffn; not {text}."
            )
        scale = float(match[1] or 1)
        if scale == 0:
            raise ValueError(f"{text} would take the sublayer away; leave it out.")
        name = "_".join(kinds)
        count = sum(term.kinds == kinds for term in found) + 1
        found.append(Term(name if count == 1 else f"{name}_{count}", kinds, scale))
    return found


def indices(at: Any, n_layers: int) -> list[int]:
    """Return the layers that `at` selects, counted from 0.

    Errors: ValueError with what is wrong, in words.
    """
    numbers = [at] if isinstance(at, int) else at
    if isinstance(numbers, str):
        match = _SLICE.fullmatch(numbers)
        if match is None or (match[3] and int(match[3]) == 0):
            raise ValueError(_FORM)
        span = slice(*(int(part) if part else None for part in match.groups()))
        return list(range(n_layers)[span])
    if not isinstance(numbers, list) or any(type(number) is not int for number in numbers):
        raise ValueError(_FORM)
    if any(not -n_layers <= number < n_layers for number in numbers):
        raise ValueError(f"must be from {-n_layers} to {n_layers - 1}, of {n_layers} layers.")
    return sorted({number % n_layers for number in numbers})


def parts_at(config: Config, layer: int, slot: str) -> dict[str, Chosen]:
    """Return the part of each kind in one sublayer; of several rules the last counts."""
    parts: dict[str, Chosen] = {kind: getattr(config, kind) for kind in RULED}
    for rule in config.model.layers:
        if rule.slot in (None, slot) and layer in indices(rule.at, config.model.n_layers):
            parts |= rule.parts
    return parts


def sublayers_of(config: Config, layer: int) -> list[tuple[Term, dict[str, Chosen]]]:
    """Return the sublayers of one layer with their parts, without what `none` takes away.

    What is left of a pair keeps the pair's slot, by which rules name it.
    """
    found = []
    for term in terms(config.model.sublayers):
        parts = parts_at(config, layer, term.slot)
        kinds = tuple(kind for kind in term.kinds if parts[kind].entry.part.target is not None)
        if kinds == term.kinds:
            found.append((term, parts))
        elif kinds:
            found.append((Term(term.slot, kinds, term.scale), parts))
    return found


def chosen_of(config: Config) -> dict[str, Chosen]:
    """Return every choice that rules and `model.embed_norm` make, by its place."""
    found = {
        f"model.layers[{n}].{kind}": chosen
        for n, rule in enumerate(config.model.layers)
        for kind, chosen in rule.parts.items()
    }
    if config.model.embed_norm is not None:
        found["model.embed_norm"] = config.model.embed_norm
    return found


def read_rules(value: Any, choose: Choose, faults: list[Fault]) -> list[Rule]:
    """Return the rules of `model.layers`, and note what is wrong with their form."""
    if not isinstance(value, list | tuple):
        hint = "Try model.layers=[{at:0,norm:none}]."
        faults.append(Fault("model.layers", "must be a list of rules.", hint))
        return []
    rules = [read_rule(item, f"model.layers[{n}]", choose, faults) for n, item in enumerate(value)]
    return [rule for rule in rules if rule is not None]


def read_rule(value: Any, path: str, choose: Choose, faults: list[Fault]) -> Rule | None:
    """Return one rule, and note what is wrong with its form."""
    known = ("at", "slot", *RULED)
    if not isinstance(value, Mapping) or "at" not in value:
        hint = "Try {at: 0, norm: none}."
        faults.append(Fault(path, "a rule is a mapping with `at`.", hint))
        return None
    for key in value:
        if key not in known:
            hint = nearest(str(key), known) or f"There are {', '.join(known)}."
            faults.append(Fault(f"{path}.{key}", "a rule has no such key.", hint))
    kinds = [kind for kind in RULED if kind in value]
    if not kinds:
        hint = f"Name one of {', '.join(RULED)}."
        faults.append(Fault(path, "names no part, so it has no effect.", hint))
    found = {kind: choose(kind, value[kind], f"{path}.{kind}") for kind in kinds}
    parts = {kind: chosen for kind, chosen in found.items() if chosen is not None}
    return Rule(value["at"], value.get("slot"), parts)


def layer_faults(config: Config) -> list[Fault]:
    """Return what is wrong between sublayers, rules and sizes."""
    model = config.model
    try:
        slots = {term.slot: term.kinds for term in terms(model.sublayers)}
    except ValueError as error:
        where = f"model.sublayers=[{','.join(model.sublayers)}]"
        return [Fault(where, str(error), "Try model.sublayers=[attention,ffn].")]
    faults = []
    for n, rule in enumerate(model.layers):
        path = f"model.layers[{n}]"
        if rule.slot is not None and str(rule.slot) not in slots:
            hint = nearest(str(rule.slot), slots) or "Leave it out for all."
            problem = f"must be one of {', '.join(slots)}."
            faults.append(Fault(f"{path}.slot={rule.slot}", problem, hint))
        try:
            if not indices(rule.at, model.n_layers):
                problem = f"selects none of the {model.n_layers} layers."
                faults.append(Fault(f"{path}.at={rule.at}", problem, "Try at: 0."))
        except ValueError as error:
            faults.append(Fault(f"{path}.at={rule.at}", str(error), "Try at: '::2'."))
        held = {kind for slot in slots if rule.slot in (None, slot) for kind in slots[slot]}
        for kind in set(rule.parts) & set(BRANCHES) - held:
            where = f"{path}.{kind}={rule.parts[kind].entry.part.name}"
            faults.append(Fault(where, f"there is no {kind} in that sublayer.", "Remove it."))
    return faults
