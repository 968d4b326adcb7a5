"""The texts of a sweep: labels, directory names and baselines, all made from override strings."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence

from encoderkit.errors import ConfigError, Fault, nearest

DEFAULT = "default"
SLUG_LENGTH = 60

_SHORT_FORMS = frozenset({"seeds", "jobs", "match", "budget"})
_SHAPES = ("match", "budget", "zip", "one_at_a_time", "also", "optional", "exclude")
_RUNNER = ("sweep.", "hydra.", "hydra/")


def key(override: str) -> str:
    """Return the config path that an override sets."""
    return override.partition("=")[0].strip().lstrip("+~")


def without_runner(overrides: Iterable[str]) -> tuple[str, ...]:
    """Return the overrides that say what a cell is: no runner settings, no seed."""
    return tuple(
        text
        for text in overrides
        if key(text) not in _SHORT_FORMS
        and key(text) != "seed"
        and not key(text).startswith(_RUNNER)
    )


def label(overrides: Iterable[str], axes: Sequence[str]) -> str:
    """Return a variant's name: those of its overrides that vary, without the seed."""
    return " ".join(o for o in without_runner(overrides) if key(o) in axes) or DEFAULT


def slug(name: str, seed: int) -> str:
    """Return `name` and the seed as at most 60 characters that are safe in any file name."""
    tail = f"seed{seed}"
    safe = re.sub(r"[^A-Za-z0-9_.]+", "-", name).strip("-.")
    room = SLUG_LENGTH - len(tail) - 1
    return f"{safe[:room].strip('-.') or 'cell'}-{tail}"


def digest(overrides: Iterable[str]) -> str:
    """Return 12 hex digits that name a sweep by what it varies, in any order, for any seeds."""
    spans = {f"sweep.{name}" for name in _SHAPES} | {"match", "budget"}
    said = [*without_runner(overrides), *(o for o in overrides if key(o) in spans)]
    text = "\n".join(sorted(said))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]


def some(items: Sequence[object], most: int = 5) -> str:
    """Return the first items with commas, and how many more there are."""
    more = len(items) - most
    return ", ".join(map(str, items[:most])) + f" and {more} more" * (more > 0)


def match(name: str, labels: Sequence[str], where: str) -> str:
    """Return the one label that is `name`, or that has all of its words.

    Errors: ConfigError at `where` when no label, or more than one, answers to it.
    """
    if name in labels:
        return name
    words = set(name.split())
    found = [text for text in labels if words and words <= set(text.split())]
    if len(found) == 1:
        return found[0]
    if found:
        problem = f"names {len(found)} variants: {'; '.join(found)}."
        raise ConfigError([Fault(f"{where}={name}", problem, "Add overrides until one is left.")])
    hint = nearest(name, labels) or "Type one of them."
    raise ConfigError([Fault(f"{where}={name}", f"must be one of: {'; '.join(labels)}.", hint)])
