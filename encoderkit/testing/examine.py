"""Properties, and what comes out when they are tried on a part."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Literal

from encoderkit.api import Kind, Traits
from encoderkit.testing.case import Broken, Case, Cases
from encoderkit.testing.subject import Subject

Check = Callable[[Subject, Case], float]
Given = Callable[[Subject], str]
Status = Literal["holds", "declared", "not asked", "broken"]


@dataclass(frozen=True, slots=True)
class Property:
    """Something that a part must do, tried on cases from the smallest up.

    `unless` names the trait that declares the opposite; `given` says in words why the question
    does not arise for a part; a `whole` property looks at a stack and not at the part alone; one
    that holds `anywhere` is asked of parts that do not run on a CPU too.
    """

    name: str
    claim: str
    kinds: tuple[Kind, ...]
    cases: Cases
    check: Check
    unless: str = ""
    given: Given = lambda subject: ""
    whole: bool = False
    anywhere: bool = False


@dataclass(frozen=True, slots=True)
class Result:
    """What came out of one property: its cases, the worst of them, or the smallest that fails."""

    name: str
    claim: str
    status: Status
    cases: int
    outcome: str
    smallest: str = ""

    @property
    def good(self) -> bool:
        """Whether the part has the property, or truthfully declares that it has not."""
        return self.status != "broken"

    def words(self) -> str:
        """Return what was claimed, what came out, and of what input."""
        of = f"{self.cases} inputs" if self.cases else ""
        of = f"smallest input: {self.smallest}" if self.smallest else of
        return f"{self.claim}: {self.outcome}{f' ({of})' * bool(of)}"

    def __str__(self) -> str:
        return f"{self.status}: {self.name}: {self.words()}"


PROPERTIES: dict[str, Property] = {}


def proves(
    claim: str,
    kinds: tuple[Kind, ...],
    cases: Cases,
    *,
    unless: str = "",
    given: Given = lambda subject: "",
    whole: bool = False,
    anywhere: bool = False,
) -> Callable[[Check], Check]:
    """Add the decorated check to the properties, under its own name.

    The check gets a subject and a case, returns how far off it is, and raises Broken when that is
    too far.
    """

    def add(check: Check) -> Check:
        name = check.__name__
        PROPERTIES[name] = Property(
            name, claim, kinds, cases, check, unless, given, whole, anywhere
        )
        return check

    return add


def applicable(kind: str) -> list[Property]:
    """Return the properties that parts of a kind have."""
    return [found for found in PROPERTIES.values() if kind in found.kinds]


def declared(traits: Traits, name: str) -> str:
    """Return a trait as it is declared, `batch_coupled=True`, or nothing when it is as usual."""
    usual = {spec.name: spec.default for spec in fields(Traits)}
    value = getattr(traits, name) if name else None
    return "" if not name or value == usual[name] else f"{name}={value}"


def examine(subject: Subject, found: Property) -> Result:
    """Try a property on every case, and stop at the first that fails."""
    trait = declared(subject.traits, found.unless)
    reason = found.given(subject)
    if subject.part.target is None and not found.whole:
        reason = "the choice takes its sublayer away"
    if "cpu" not in subject.traits.devices and not found.anywhere:
        reason = f"it runs on {' and '.join(sorted(subject.traits.devices))}, and this is a CPU"
    cases = list(found.cases) if found.anywhere else subject.cases(found.cases)
    if not cases and not reason:
        reason = "it declares none of the dtypes that this is tried in"
    if reason:
        return Result(found.name, found.claim, "not asked", 0, reason)
    worst = 0.0
    for count, case in enumerate(cases, 1):
        try:
            worst = max(worst, found.check(subject, case))
        except Broken as broken:
            if trait:
                words = f"{trait}, and so it is: {broken}"
                return Result(found.name, found.claim, "declared", count, words, str(case))
            return Result(found.name, found.claim, "broken", count, str(broken), str(case))
        except Exception as error:
            words = " ".join(f"{type(error).__name__}: {error}".split())
            words = words if len(words) <= 300 else f"{words[:297]}..."
            return Result(found.name, found.claim, "broken", count, words, str(case))
    if trait:
        words = f"the trait {trait} is declared and not true"
        return Result(found.name, found.claim, "broken", len(cases), words)
    words = f"off by at most {worst:.1g}" if worst else "exactly"
    return Result(found.name, found.claim, "holds", len(cases), words)
