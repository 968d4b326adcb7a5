"""The words of a request: overrides in Hydra's grammar, each with what is wrong with its form."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import Any

from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, ValueType
from hydra.errors import HydraException

from encoderkit.config.check import SHORT, code_faults
from encoderkit.config.overrides import quoted, refused
from encoderkit.config.presets import Presets, defaults_of
from encoderkit.config.schema import SETTINGS
from encoderkit.config.text import DEEPEST, MOST_CHARACTERS, overgrown
from encoderkit.errors import Fault, nearest
from encoderkit.registry import GROUPS

TEXTS = ("sweep.baseline", "sweep.dir", "sweep.name")  # taken as typed, whatever is in them
MOST_POINTS = 100_000

# Brackets that open one in the other, more than anything that is right has.
_DEEP = re.compile(rf"(?:[\[{{(][^\[{{()}}\]'\"]*){{{DEEPEST + 1}}}")


class _Groups:
    """What Hydra's glob asks for: the choices of a group."""

    def __init__(self, presets: Presets) -> None:
        self._presets = presets

    def get_group_options(
        self, group_name: str, results_filter: ObjectType | None = None, **_: Any
    ) -> list[str]:
        return list(self._presets.groups.get(group_name, {}))


class Words:
    """Reads override strings."""

    def __init__(self, presets: Presets) -> None:
        self.presets = presets
        self._parser = OverridesParser.create(config_loader=_Groups(presets))  # type: ignore[arg-type]

    def parse(self, overrides: Sequence[str]) -> tuple[list[Override], list[Fault]]:
        """Return the well-formed overrides and a fault for each of the others."""
        parsed: list[Override] = []
        faults: list[Fault] = []
        given: dict[str, str] = {}
        for text in overrides:
            if len(text) > MOST_CHARACTERS:
                problem = f"has more than {MOST_CHARACTERS} characters."
                faults.append(Fault(text[:60], problem, "Write the value in a preset's file."))
                continue
            if _DEEP.search(text):  # Hydra's grammar would take a second over it
                problem = f"is nested more than {DEEPEST} levels deep."
                faults.append(Fault(f"{text[:57]}...", problem, "Remove it."))
                continue
            key, equals, value = text.partition("=")
            if key in TEXTS and value != "null" and value[:1] not in ("'", '"', "$"):
                value = quoted(value)
            try:
                (item,) = self._parser.parse_overrides([f"{SHORT.get(key, key)}{equals}{value}"])
            except (HydraException, ValueError, RecursionError) as error:
                faults.append(refused(text, error))
                continue
            before = given.setdefault(item.key_or_group, text)
            found = (
                self._form_faults(item)
                if before == text
                else [
                    Fault(text, f"{item.key_or_group} was given before, as {before}.", "Keep one.")
                ]
            )
            parsed += [] if found else [item]
            faults += found
        return parsed, faults

    def _form_faults(self, item: Override) -> list[Fault]:
        """Return what is wrong with an override's form, or with its choice."""
        fault = self._form_fault(item)
        if fault or item.is_sweep_override() or not is_group(item):
            return [fault] if fault else []
        group, name = item.key_or_group, item.value()
        if not isinstance(name, str) or name not in self.presets.groups[group]:
            return [self.presets.unknown(group, name)]
        broken = self.presets.faults(group, name)
        return [Fault(f"{group}={name}", f"{f.where}: {f.problem}", f.hint) for f in broken]

    def _form_fault(self, item: Override) -> Fault | None:
        """Return what is wrong with an override's form."""
        key = item.key_or_group
        line = item.input_line or key
        if item.is_add() or item.is_force_add():
            bare = line.lstrip("+")
            problem = "'+' would add a key, and only keys that a part declares have an effect."
            known = self._known_keys(key)
            hint = f"Type {bare}." if key in known else nearest(key, known)
            return Fault(line, problem, hint or "`encoderkit show` lists the keys.")
        if item.is_delete():
            return Fault(line, "nothing can be deleted.", "Choose `none` where a kind has it.")
        if item.package is not None or item.is_hydra_override():
            problem = "packages and hydra.* belong to `encoderkit train -m` alone."
            return Fault(line, problem, "Remove it.")
        if key.endswith(".part"):
            kind = key.removesuffix(".part")
            hint = f"Choose with {kind}={line.partition('=')[2]}."
            return Fault(line, "is read-only.", hint)
        if key.count(".") > DEEPEST:
            return Fault(line, f"is nested more than {DEEPEST} levels deep.", "Remove it.")
        if item.is_sweep_override():
            return None
        value = {key: item.value()}
        return overgrown(value) or next(iter(code_faults(value)), None)

    def _known_keys(self, key: str) -> list[str]:
        """Return every key that could stand where `key` stands."""
        group = key.partition(".")[0]
        options = [e.part.options for e in self.presets.registry if e.part.kind == group]
        options += [SETTINGS[group]] if group in SETTINGS else []
        return [f"{group}.{name}" for o in options for name in defaults_of(o)] + list(GROUPS)

    def values(self, item: Override, faults: list[Fault]) -> list[str]:
        """Return the values of an override as text; a value that does not vary is one."""
        line = item.input_line or ""
        if not item.is_sweep_override():
            return [line.partition("=")[2]]
        if item.is_interval_sweep():
            faults.append(Fault(line, "an interval has no points.", "Use range(start,stop,step)."))
            return []
        strings = itertools.islice(item.sweep_string_iterator(), MOST_POINTS + 1)
        values = list(dict.fromkeys(map(_typed, strings)))
        if not values:
            known = ", ".join(self.presets.groups.get(item.key_or_group, {}))
            faults.append(Fault(line, "matches nothing.", f"There are {known}." if known else ""))
        if is_group(item):
            group = item.key_or_group
            known_choices = self.presets.groups[group]
            faults += [self.presets.unknown(group, v) for v in values if v not in known_choices]
        return values


def _typed(text: str) -> str:
    """Return what Hydra makes of one of several values as one would type it: true, 1e-5."""
    return {"True": "true", "False": "false"}.get(text) or re.sub(
        r"^(-?[\d.]+e-)0(\d)$", r"\1\2", text
    )


def is_group(item: Override) -> bool:
    """Tell whether an override chooses a part or a preset."""
    return item.key_or_group in GROUPS


def is_listed(item: Override) -> bool:
    """Tell whether an override is a,b where a list or a text may have been meant."""
    return item.value_type == ValueType.SIMPLE_CHOICE_SWEEP and not is_group(item)
