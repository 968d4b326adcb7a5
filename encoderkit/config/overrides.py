"""What needs no Hydra: override texts, quoted and refused; trees, resolved and walked."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

from omegaconf import DictConfig, OmegaConf
from omegaconf.basecontainer import BaseContainer
from omegaconf.errors import OmegaConfBaseException

from encoderkit.errors import Fault

_ONE_AT_A_TIME = threading.RLock()  # OmegaConf's resolvers are global


@dataclass(frozen=True, slots=True)
class Origin:
    """A resolved leaf and where its value was said last."""

    path: str
    value: Any
    source: str


def several(text: str, listed: bool) -> Fault:
    """Return the fault of an axis where one point is asked for; `listed` when it is just a,b."""
    key, _, value = text.partition("=")
    hint = "Sweep over it with `encoderkit sweep`, or `encoderkit train -m`."
    if listed and "(" not in value:
        hint += f" A list is {key}=[{value}], a text with a comma {key}='{value}'."
    return Fault(text, "is several values, and one is wanted.", hint)


def refused(text: str, error: Exception) -> Fault:
    """Return the fault of a text that Hydra's grammar does not take."""
    key, _, value = text.partition("=")
    words = cause(error)
    if "LexerNoViableAlt" in words:
        words = "it has a character that stands in quotes only"
    quotes = value and "'" not in value and re.fullmatch(r"\w+(\.\w+)*", key)
    what, example = "text", f"'{value}'"
    if value.startswith("[") and value.endswith("]"):
        what, items = "list of texts", (f"'{item.strip()}'" for item in value[1:-1].split(","))
        example = f"[{','.join(items)}]"
    hint = (
        f"For a {what}, write {key}={example} (and the shell needs quotes too)." if quotes else ""
    )
    return Fault(text, f"is no override ({words}).", hint or "Write key=value.")


def cause(error: Exception) -> str:
    """Return the first, telling part of an error of Hydra's, OmegaConf's or yaml's."""
    if isinstance(error, RecursionError):
        return "something in it is based on itself, or nested too deep"
    text = " ".join(str(error).split()) or type(error).__name__
    noise = r"See https://hydra\S+|Config search path:|full_key:|Set the environment variable HYDRA"
    return re.split(noise, text)[0].rstrip(" .")


def quoted(text: str) -> str:
    """Return a text in quotes, so that Hydra's grammar takes it as it is."""
    return "'" + re.sub(r"(\\+)(?='|$)", r"\1\1", text).replace("'", "\\'") + "'"


@contextmanager
def without_environment() -> Iterator[None]:
    """Refuse `${oc.env:NAME}` while the block runs.

    What a variable holds may be secret, and a configuration goes to the disk, into messages and
    into reports; and a run that depends on it could not be told from its record.
    """
    resolvers = BaseContainer._resolvers  # OmegaConf has no other way to give one back
    with _ONE_AT_A_TIME:
        held = resolvers["oc.env"]
        OmegaConf.register_new_resolver("oc.env", _refuse_environment, replace=True)
        try:
            yield
        finally:
            resolvers["oc.env"] = held


def _refuse_environment(name: str, default: str = "") -> NoReturn:
    raise ValueError(f"the environment variable {name} is not read: write the value itself")


def leaves(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the path and the value of every leaf of nested mappings."""
    if isinstance(tree, Mapping) and tree:
        for key, value in tree.items():
            yield from leaves(value, f"{path}.{key}" if path else str(key))
    elif path:
        yield path, tree


def resolved(tree: DictConfig) -> tuple[dict[str, Any], dict[str, list[Fault]]]:
    """Return the plain values of a tree; and by key, what cannot be resolved."""
    whole: dict[str, Any] = {}
    wrong: dict[str, list[Fault]] = {}
    for key in map(str, tree):
        try:
            with without_environment():
                value = "???" if OmegaConf.is_missing(tree, key) else tree[key]
                nested = OmegaConf.is_config(value)
                whole[key] = OmegaConf.to_container(value, resolve=True) if nested else value
        except OmegaConfBaseException as error:
            where = str(getattr(error, "full_key", "") or key)
            wrong[key] = [Fault(where, f"{cause(error)}.")]
    return whole, wrong
