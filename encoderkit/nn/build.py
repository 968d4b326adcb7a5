"""From a checked configuration to a module: the one place that sees configuration and registry."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Mapping
from typing import Any, TypeVar, get_args

import torch
from torch import nn

from encoderkit.api import Device, Precision, Traits
from encoderkit.config.layers import sublayers_of
from encoderkit.config.live import Uses, unread
from encoderkit.config.needs import PRECISIONS, conflicts, place_of
from encoderkit.config.request import configure
from encoderkit.config.schema import Chosen, Config
from encoderkit.errors import ConfigError, EncoderkitError, Fault, PluginError
from encoderkit.nn.attention import Mixer
from encoderkit.nn.base import FFN, Init, NoNorm, Norm, Piece, Placement, Position
from encoderkit.nn.context import key, seeded
from encoderkit.nn.init import redraw
from encoderkit.nn.model import EncoderModel
from encoderkit.nn.site import Site
from encoderkit.nn.stack import EncoderStack, Parallel, Sublayer
from encoderkit.plugins import registry

T = TypeVar("T")
M = TypeVar("M", bound=nn.Module)
S = TypeVar("S", bound=EncoderStack)
CPU, META = torch.device("cpu"), torch.device("meta")
IDLE = ("train", "task", "run.", "sweep.", "seeds=", "jobs=")
BRANCHES: dict[str, type[Piece]] = {"attention": Mixer, "ffn": FFN}


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

    Errors: ConfigError, also for a part that does not run there, or not in that dtype; PluginError.
    """
    there = torch.get_default_device() if device is None else torch.device(device)
    named = str(dtype or torch.get_default_dtype()).removeprefix("torch.")
    place = {
        f"device={there.type}": there.type,
        f"dtype={named}": named,
    }
    known = () if there.type == "meta" else (*get_args(Device), *get_args(Precision))
    _refuse_conflicts(config, {text: need for text, need in place.items() if need in known})
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

    Errors: ConfigError, also for a part that cannot be trained on `run.device`, or not with
    `train.precision`; PluginError.
    """
    place, precision = config.run.device, config.train.precision
    if place == "auto":
        place = "cuda" if torch.cuda.is_available() else "cpu"
    asked = {f"run.device={config.run.device}": place}
    _refuse_conflicts(config, asked | {f"train.precision={precision}": PRECISIONS[precision]})
    sizes = {"vocab": vocab, "outputs": outputs}
    return _finished(EncoderModel, sizes, config, device, dtype)


def _refuse_conflicts(config: Config, place: Mapping[str, str]) -> None:
    """Refuse parts that cannot do what is asked of them. Errors: ConfigError with all there are."""
    if faults := conflicts(config, registry(), place):
        raise ConfigError(faults)


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
            assembly = _Assembly(config)
            stack = cls(**sizes, **assembly.pieces())
        stack.slots = assembly.slots(stack)
        init = _made(config.init, "init", Init, (config.init.options,))
        gains = assembly.gains(init)
        if home is CPU:
            redraw(stack, init, config.seed_init, gains)
    finally:
        torch.set_default_dtype(default)
    return stack.to(device=target, dtype=dtype or default)


class _Assembly:
    """Builds the parts of one configuration where they stand."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.used: dict[str, Traits] = {}
        self.positions: dict[str, Chosen] = {}
        self.asked: set[str] = set()  # positions that some part reads, or that add to x
        self.depth = 0  # sublayers that are built
        self.uses = Uses()
        self.made: list[tuple[str, str, nn.Module]] = []  # path and label of each part
        self.brought: dict[str, tuple[float, str]] = {}  # branch gains, and whose they are

    def pieces(self) -> dict[str, Any]:
        """Return what `EncoderStack` takes.

        Errors: ConfigError for a norm or a position that no part asks for.
        """
        config, model = self.config, self.config.model
        self.position_name(config.position)
        layers = [self.layer(n) for n in range(model.n_layers)]
        embed_norm: Norm = NoNorm()
        if model.embed_norm is not None:
            embed_norm = self.part("norm", self.site("embed_norm"), Norm, model.embed_norm)
        final = self.final()
        position = {name: self.position(name) for name in self.positions}
        self.refuse_idle()
        for name in {*position} - self.asked - {"none"}:  # rules replace it everywhere
            del position[name]
        return {
            "d_model": model.d_model,
            "position": nn.ModuleDict(position),
            "embed_norm": embed_norm,
            "layers": nn.ModuleList(layers),
            "final": final,
            "traits": self.used,
            "seed": config.seed,
        }

    def layer(self, n: int) -> nn.ModuleDict:
        """Return one layer: a sublayer in each slot."""
        sublayers = {}
        for term, parts in sublayers_of(self.config, n):
            path = f"layers.{n}.{term.slot}"
            branches = {
                kind: self.part(
                    kind,
                    self.site(
                        f"{path}.branch" if len(term.kinds) == 1 else f"{path}.branch.{kind}",
                        n,
                        term.slot,
                        parts,
                    ),
                    BRANCHES[kind],
                    parts[kind],
                )
                for kind in term.kinds
            }
            branch = Parallel(branches) if len(branches) > 1 else branches[term.kinds[0]]
            site = self.site(f"{path}.placement", n, term.slot, parts)
            placement = self.part("placement", site, Placement, parts["placement"])
            label = _label("placement", parts["placement"])
            self.brought[f"{path}.branch"] = (placement.branch_gain, label)
            stream = f"{label} {parts['placement'].options}"
            sublayers[term.slot] = Sublayer(branch, placement, term.scale, stream)
            self.depth += 1
        return nn.ModuleDict(sublayers)

    def final(self) -> Norm:
        """Return the norm after the last layer, which its placement asks for unless told."""
        model = self.config.model
        wanted = {"true": True, "false": False}.get(model.final_norm)
        if wanted is None:
            placement = self.config.placement
            for n in range(model.n_layers):
                for _, parts in sublayers_of(self.config, n):
                    placement = parts["placement"]
            self.uses.add(placement)
            wanted = placement.entry.load().final_norm
        site = self.site("final", slot="final")
        return self.part("norm", site, Norm, self.config.norm) if wanted else NoNorm()

    def position(self, name: str) -> Position:
        """Return a position part.

        Errors: ConfigError for one that adds to x, and was chosen for some layers only.
        """
        chosen = self.positions[name]
        made = self.part("position", self.site(f"position.{name}"), Position, chosen)
        if type(made).embed is not Position.embed:
            if chosen is not self.config.position:
                where = f"model.layers: position={chosen.entry.part.name}"
                problem = "adds to x before the first layer, so it cannot be for some layers only."
                raise ConfigError([Fault(where, problem, "Choose it as position=.")])
            self.ask(name, chosen)
        return made

    def position_name(self, chosen: Chosen) -> str:
        """Return the name of a position part; two that differ in their options have two."""
        for name, held in self.positions.items():
            if held.entry is chosen.entry and held.options == chosen.options:
                return name
        part = chosen.entry.part.name
        count = sum(held.entry is chosen.entry for held in self.positions.values()) + 1
        name = part if count == 1 else f"{part}_{count}"
        self.positions[name] = chosen
        return name

    def refuse_idle(self) -> None:
        """Refuse a norm or a position that no part asks for, and what was said and is not read.

        Errors: ConfigError.
        """
        config, faults = self.config, []
        # What rules replace everywhere is a fault of `unread` where somebody said it.
        ruled = {kind for rule in config.model.layers for kind in rule.parts}
        idle = not self.uses.has(config.norm) and config.norm.entry.part.name != "none"
        if idle and "norm" not in ruled:
            problem = f"no part asks for a norm with {_label('placement', config.placement)}."
            faults.append(Fault(_label("norm", config.norm), problem, "Try norm=none."))
        for name, chosen in self.positions.items():
            unasked = name not in self.asked and chosen.entry.part.name != "none"
            if unasked and "position" not in ruled:
                problem = "no part asks for it: there is no attention that reads it."
                faults.append(Fault(_label("position", chosen), problem, "Try position=none."))
        faults += unread(config, self.uses, {fault.where for fault in faults})
        if faults:
            raise ConfigError(faults)

    def gains(self, init: Init) -> dict[str, float]:
        """Return what the weights of each branch are multiplied with, by path.

        Errors: ConfigError where both the placement and the init bring a gain.
        """
        own = init.branch_gain(self.config.model.n_layers)
        for gain, label in self.brought.values():
            if gain != 1 and own != 1:
                where = _label("init", self.config.init)
                problem = f"{label} brings a gain for its branches already, {gain:.3g}."
                raise ConfigError([Fault(where, problem, "Try init=xavier.")])
        return {path: gain * own for path, (gain, _) in self.brought.items() if gain * own != 1}

    def slots(self, stack: nn.Module) -> dict[str, str]:
        """Return the part that was built for each place, by its path in the stack.

        One that stands nowhere in the stack has the path of its site.
        """
        paths = {id(module): name for name, module in stack.named_modules()}
        unasked = {f"position.{name}" for name in self.positions if name not in self.asked}
        found = {paths.get(id(module), path): label for path, label, module in self.made}
        return {path: label for path, label in sorted(found.items()) if path not in unasked}

    def site(
        self,
        path: str,
        layer: int = -1,
        slot: str = "",
        parts: Mapping[str, Chosen] | None = None,
    ) -> Site:
        """Return the site of a part, in a sublayer with these parts."""
        model = self.config.model
        held = parts or {kind: getattr(self.config, kind) for kind in ("norm", "position")}
        name = self.position_name(held["position"])
        return Site(
            d_model=model.d_model,
            d_ff=model.d_ff or 4 * model.d_model,
            n_heads=model.n_heads,
            n_layers=model.n_layers,
            layer=layer,
            depth=0 if parts is None else self.depth,
            slot=slot,
            path=path,
            make_norm=lambda site: self.part("norm", site, Norm, held["norm"]),
            ask_position=lambda: self.ask(name, held["position"]),
        )

    def ask(self, name: str, chosen: Chosen) -> str:
        """Note that a part reads a position, and return its name."""
        self.asked.add(name)
        self.uses.add(chosen)
        return name

    def part(self, kind: str, site: Site, base: type[M], chosen: Chosen) -> M:
        """Return a part, built at a site by draws of its own."""
        self.used[_label(kind, chosen)] = chosen.entry.part.traits
        if kind != "position":  # those are used where some part asks for them
            self.uses.add(chosen)
        own = site.noting(self.uses.sizes.add)
        held = weakref.ref(own)
        try:
            with seeded(key(self.config.seed_init, site.path), CPU):
                module = _made(chosen, kind, base, (chosen.options, own))
        except ConfigError as error:
            raise ConfigError(
                [self.moved(fault, kind, chosen) for fault in error.faults]
            ) from error
        del own
        if held() is not None:
            gc.collect()  # an error that the constructor caught may hold it, for a while
        if held() is not None:
            raise PluginError(
                f"{_owned(kind, chosen)} keeps its site at {site.path}. "
                "Copy what you need from the site in __init__, and build norms there."
            )
        self.made.append((site.path, _label(kind, chosen), module))
        return module

    def moved(self, fault: Fault, kind: str, chosen: Chosen) -> Fault:
        """Return a part's own fault with the key that somebody typed, of a rule if that said it."""
        option = fault.where.partition("=")[0].rpartition(".")[2]
        if chosen.changed is not None and option not in chosen.changed:
            return fault
        return fault.moved(kind, place_of(self.config, kind, chosen))


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
