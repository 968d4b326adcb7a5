"""The kit's two ways in: a class that pytest collects, and results as data."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch

import encoderkit.testing.properties  # noqa: F401  fills PROPERTIES
from encoderkit.api import KINDS
from encoderkit.config.request import configure
from encoderkit.errors import ConfigError, Fault
from encoderkit.testing.examine import Property, Result, applicable, examine
from encoderkit.testing.subject import Reference, Subject


def subjects(*request: str, reference: Reference | None = None) -> list[Subject]:
    """Return the parts that a request names, one of each kind.

    Errors: ConfigError for a request that names none, or sets what no part reads.
    """
    words = [item.partition("=")[0].partition(".")[0] for item in request]
    kinds = [kind for kind in KINDS if kind in words]
    faults = [
        Fault(item, "is no part, nor an option of one.", "Try norm=rmsnorm norm.eps=1e-5.")
        for item, word in zip(request, words, strict=True)
        if word not in KINDS
    ]
    if faults or not kinds:
        raise ConfigError(faults or [Fault("request", "names no part.", "Try norm=rmsnorm.")])
    config = configure(*request)
    return [Subject(kind, config, reference) for kind in kinds]


def check(*request: str, reference: Reference | None = None) -> Iterator[Result]:
    """Yield what comes out of each property, for every part that a request names.

    check("norm=mynorm", "norm.alpha=0.7"); `reference(module, x, lengths)` is what the part should
    compute from packed tokens x (N, D), written in another way, in float64.

    Errors: ConfigError.
    """
    for subject in subjects(*request, reference=reference):
        for found in applicable(subject.kind):
            yield examined(subject, found)


def examined(subject: Subject, found: Property) -> Result:
    """Return the result of one property, and leave the global generators and modes as they were."""
    with _quiet():
        return examine(subject, found)


@contextmanager
def _quiet() -> Iterator[None]:
    """Run on one thread, so that "bit-equal" means something, and restore what a part may spoil."""
    threads, dtype = torch.get_num_threads(), torch.get_default_dtype()
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float32)
    disabled = logging.root.manager.disable
    logging.disable()  # a graph that does not compile is logged at length
    try:
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            yield
    finally:
        logging.disable(disabled)
        torch.set_num_threads(threads)
        torch.set_default_dtype(dtype)


def conformance(*request: str, reference: Reference | None = None) -> type:
    """Return a class with a test for each property, for pytest to collect.

    TestConformance = conformance("norm=mynorm", "norm.alpha=0.7"); the name must begin with Test.
    """

    @cache
    def one() -> list[Subject]:
        return subjects(*request, reference=reference)

    kinds = {item.partition("=")[0].partition(".")[0] for item in request}
    tests: dict[str, Any] = {}
    for kind in (kind for kind in KINDS if kind in kinds):
        for found in applicable(kind):
            tests[f"test_{found.name}" if len(kinds) == 1 else f"test_{kind}_{found.name}"] = _test(
                one, kind, found
            )
    return type("Conformance", (), tests or {"test_request": lambda self: one()})


def _test(one: Callable[[], list[Subject]], kind: str, found: Property) -> Callable[[Any], None]:
    def test(self: Any) -> None:
        __tracebackhide__ = True
        (subject,) = (s for s in one() if s.kind == kind)
        result = examined(subject, found)
        if not result.good:
            raise AssertionError(str(result))

    test.__doc__ = found.claim
    return test
