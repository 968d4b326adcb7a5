"""Values as text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import yaml

from encoderkit.errors import Fault

MOST_VALUES = 10_000  # in one configuration; a whole one has some 120
MOST_CHARACTERS = 50_000  # in one file or override
DEEPEST = 20  # nothing that is ever right is nested half as deep

_DEEP = f"is nested more than {DEEPEST} levels deep."
_LARGE = f"holds more than {MOST_VALUES} values."


def show(value: Any, depth: int = 0, most: int = 60) -> str:
    """Return a value as one would type it, cut to `most` characters."""
    if depth > DEEPEST:
        return "..."
    if value is None or isinstance(value, bool):
        text = {None: "null", True: "true", False: "false"}[value]
    elif isinstance(value, list | tuple):
        text = f"[{_listed(value, lambda item: show(item, depth + 1, most), most)}]"
    elif isinstance(value, Mapping):

        def pair(item: tuple[Any, Any]) -> str:
            return f"{str(item[0])[:most]}:{show(item[1], depth + 1, most)}"

        text = f"{{{_listed(value.items(), pair, most)}}}"
    elif isinstance(value, float):
        text = repr(value).replace("e-0", "e-")
    else:
        text = str(value)
    return text if len(text) <= most else f"{text[: most - 3]}..."


def _listed(items: Iterable[Any], shown: Callable[[Any], str], most: int) -> str:
    """Return items with commas; none beyond the first `most` characters is looked at."""
    found: list[str] = []
    length = 0
    for item in items:
        found.append(shown(item))
        length += len(found[-1]) + 1
        if length > most:
            break
    return ",".join(found)


def overgrown(tree: Any) -> Fault | None:
    """Return the fault of a tree that is too deep or too large to be a configuration.

    What is the same object in many places counts in each: a few lines of YAML can say 10^9 values.
    """
    left, todo = MOST_VALUES, [("", tree, 0)]
    while todo:
        path, item, depth = todo.pop()
        if depth > DEEPEST:
            return Fault(path, _DEEP, "Remove it.")
        pairs: list[tuple[str, Any]] = []
        if isinstance(item, Mapping):
            pairs = [(f"{path}.{str(k)[:60]}" if path else str(k)[:60], v) for k, v in item.items()]
        elif isinstance(item, list | tuple):
            pairs = [(f"{path}[{n}]", value) for n, value in enumerate(item)]
        left -= len(pairs)
        if left < 0:
            return Fault("request", _LARGE, "Remove what repeats in it.")
        todo += [(inner, value, depth + 1) for inner, value in pairs]
    return None


def require_small(data: bytes) -> None:
    """Refuse YAML that says more than a configuration can, before anything is made of it.

    Errors: ValueError, yaml.YAMLError.
    """
    if len(data) > MOST_CHARACTERS:
        raise ValueError(f"has more than {MOST_CHARACTERS} characters")
    sizes: dict[str, int] = {}  # of what stands behind each anchor
    opened: list[tuple[str | None, int]] = [(None, 0)]
    for event in yaml.parse(data, yaml.SafeLoader):
        if isinstance(event, yaml.CollectionStartEvent):
            opened.append((event.anchor, 0))
        elif isinstance(event, yaml.CollectionEndEvent | yaml.AliasEvent | yaml.ScalarEvent):
            size = 1
            if isinstance(event, yaml.CollectionEndEvent):
                anchor, inside = opened.pop()
                size += inside
                sizes |= {anchor: size} if anchor else {}
            elif isinstance(event, yaml.AliasEvent):
                # None yet: it stands inside itself, and has no end.
                size = sizes.get(str(event.anchor), 2 * MOST_VALUES + 1)
            outer, held = opened[-1]
            opened[-1] = outer, held + size
        if len(opened) > DEEPEST + 1:
            raise ValueError(_DEEP.rstrip("."))
        if opened[-1][1] > 2 * MOST_VALUES:  # keys count here too
            raise ValueError(_LARGE.rstrip("."))


def read_yaml(data: bytes) -> Any:
    """Return the plain value that a small piece of YAML says.

    Errors: ValueError, yaml.YAMLError.
    """
    require_small(data)
    return yaml.safe_load(data)
