"""From a checked configuration to a module: the one place that sees configuration and registry."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import nn

from encoderkit.api import Traits
from encoderkit.config.request import configure
from encoderkit.config.schema import Chosen, Config
from encoderkit.errors import ConfigError, EncoderkitError, Fault, PluginError
from encoderkit.nn.base import FFN, Attention, Init, NoNorm, Norm, Piece, Placement, Position
from encoderkit.nn.context import key, seeded
from encoderkit.nn.init import redraw
from encoderkit.nn.model import EncoderModel
from encoderkit.nn.site import Site
from encoderkit.nn.stack import EncoderStack, Sublayer

T = TypeVar("T")
S = TypeVar("S", bound=EncoderStack)
CPU, META = torch.device("cpu"), torch.device("meta")
IDLE = ("train", "task", "run.", "sweep.", "seeds=", "jobs=")
BRANCHES: dict[str, type[Piece]] = {"attention": Attention, "ffn": FFN}


def build(
    *request: Any, device: torch.device | str | None = None, dtype: torch.dtype | None = None
) -> EncoderStack:
    """Return the stack that a request describes, as `configure` takes it.

    build("norm=rmsnorm", "model.d_model=256"), or build({"norm": "rmsnorm"})

    Errors: ConfigError, also for strings that say how to train, which a stack does not know;
    PluginError.
    """
    words = [text for text in request if isinstance(text, str)]
    idle = [text for text in words if text.lstrip("+~").startswith(IDLE)]
    if idle:
        hint = "Leave it out, or train with `encoderkit train`."
        raise ConfigError([Fault(text, "has no effect on a stack.", hint) for text in idle])
    return build_stack(configure(*request), device=device, dtype=dtype)


def build_stack(
    config: Config, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
) -> EncoderStack:
    """Return the stack that a configuration describes.

    Weights are drawn in float32 on the CPU by (seed_init, path), then cast and moved; on the meta
    device there are none, for counting.

    Errors: ConfigError, PluginError.
    """
    return _finished(EncoderStack, {}, config, device, dtype)


def build_model(
    config: Config,
    vocab: int,
    outputs: int,
    *,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> EncoderModel:
    """Return the stack that a configuration describes, between an embedding and a head.

    Errors: ConfigError, PluginError.
    """
    sizes = {"vocab": vocab, "outputs": outputs}
    return _finished(EncoderModel, sizes, config, device, dtype)


def _finished(
    cls: type[S],
    sizes: Mapping[str, Any],
    config: Config,
    device: torch.device | str | None,
    dtype: torch.dtype | None,
) -> S:
    """Return a stack of class `cls`, drawn, cast and moved."""
    target = torch.get_default_device() if device is None else torch.device(device)
    default = torch.get_default_dtype()
    home = META if target.type == "meta" else CPU
    torch.set_default_dtype(torch.float32)
    try:
        # Constructors draw too; the caller's generator must not notice.
        with home, seeded(key(config.seed_init), CPU):
            stack = cls(**sizes, **_Assembly(config).pieces())
        if home is CPU:
            init = _made(config.init, "init", Init, (config.init.options,))
            redraw(stack, init, config.seed_init)
    finally:
        torch.set_default_dtype(default)
    return stack.to(device=target, dtype=dtype or default)


class _Assembly:
    """Builds the parts of one configuration where they stand."""

    def __init__(self, config: Config) -> None:
        self.config = config

    def pieces(self) -> dict[str, Any]:
        """Return what `EncoderStack` takes."""
        config, model = self.config, self.config.model
        name = config.position.entry.part.name
        site = self.site(-1, "", f"position.{name}")
        position = self.part("position", site, Position)
        layers = [self.layer(n) for n in range(model.n_layers)]
        used = ["norm", "placement", "position", *dict.fromkeys(self.branches().values())]
        return {
            "d_model": model.d_model,
            "position": nn.ModuleDict({name: position}),
            "layers": nn.ModuleList(layers),
            "final": self.final(),
            "traits": {_label(kind, getattr(config, kind)): _traits(config, kind) for kind in used},
            "seed": config.seed,
        }

    def branches(self) -> dict[str, str]:
        """Return the kind of part in each slot of a layer; a repeated kind counts: ffn_2."""
        slots: dict[str, str] = {}
        for kind in self.config.model.sublayers:
            if getattr(self.config, kind).entry.part.target is not None:
                count = sum(other == kind for other in slots.values()) + 1
                slots[kind if count == 1 else f"{kind}_{count}"] = kind
        return slots

    def layer(self, n: int) -> nn.ModuleDict:
        """Return one layer: a sublayer in each slot."""
        sublayers = {}
        for slot, kind in self.branches().items():
            path = f"layers.{n}.{slot}"
            branch = self.part(kind, self.site(n, slot, f"{path}.branch"), BRANCHES[kind])
            site = self.site(n, slot, f"{path}.placement")
            sublayers[slot] = Sublayer(branch, self.part("placement", site, Placement))
        return nn.ModuleDict(sublayers)

    def final(self) -> Norm:
        """Return the norm after the last layer, which the placement asks for unless told."""
        asked = {"true": True, "false": False}
        wanted = asked.get(self.config.model.final_norm)
        if wanted is None:
            wanted = self.config.placement.entry.load().final_norm
        return self.norm(self.site(-1, "final", "final")) if wanted else NoNorm()

    def site(self, layer: int, slot: str, path: str) -> Site:
        """Return the site of a part."""
        model = self.config.model
        return Site(
            d_model=model.d_model,
            d_ff=model.d_ff or 4 * model.d_model,
            n_heads=model.n_heads,
            n_layers=model.n_layers,
            layer=layer,
            slot=slot,
            path=path,
            make_norm=self.norm,
            position_name=self.config.position.entry.part.name,
        )

    def norm(self, site: Site) -> Norm:
        """Return the chosen norm, built at a site."""
        return self.part("norm", site, Norm)

    def part(self, kind: str, site: Site, base: type[T]) -> T:
        """Return the chosen part of a kind, built at a site by draws of its own."""
        chosen: Chosen = getattr(self.config, kind)
        own = replace(site)
        held = weakref.ref(own)
        with seeded(key(self.config.seed_init, site.path), CPU):
            module = _made(chosen, kind, base, (chosen.options, own))
        del own
        if held() is not None:
            gc.collect()  # an error that the constructor caught may hold it, for a while
        if held() is not None:
            raise PluginError(
                f"{_owned(kind, chosen)} keeps its site at {site.path}. "
                "Copy what you need from the site in __init__, and build norms there."
            )
        return module


def _made(chosen: Chosen, kind: str, base: type[T], arguments: tuple[Any, ...]) -> T:
    """Return an instance of a part's class, whatever its constructor does.

    Errors: PluginError, or the EncoderkitError that the constructor itself raises.
    """
    cls = chosen.entry.load()
    if not (isinstance(cls, type) and issubclass(cls, base)):
        raise PluginError(
            f"{_owned(kind, chosen)}: {chosen.entry.part.target} must be a class derived from "
            f"encoderkit.nn.{base.__name__}"
        )
    try:
        return cls(*arguments)
    except EncoderkitError:
        raise
    except Exception as error:
        raise PluginError(
            f"{_owned(kind, chosen)} cannot be built: {type(error).__name__}: {error}"
        ) from error


def _label(kind: str, chosen: Chosen) -> str:
    return f"{kind}={chosen.entry.part.name}"


def _owned(kind: str, chosen: Chosen) -> str:
    return f"{_label(kind, chosen)} ({chosen.entry.owner})"


def _traits(config: Config, kind: str) -> Traits:
    traits: Traits = getattr(config, kind).entry.part.traits
    return traits
