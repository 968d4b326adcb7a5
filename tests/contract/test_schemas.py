"""The formats that outlive a version: what config.yaml, record.json, sweep.json hold.

A change here breaks people's records: it belongs into the CHANGELOG, with a new schema number.
`python tests/contract/test_schemas.py` writes the golden file anew.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from encoderkit.config.check import SEEDS
from encoderkit.config.presets import defaults_of
from encoderkit.config.schema import SETTINGS
from encoderkit.plugins import registry
from encoderkit.sweep.record import Record

GOLDEN = Path(__file__).parents[1] / "golden" / "schemas.json"


def current():
    """Return all formats as one JSON-able mapping."""
    ours = [entry for entry in registry() if entry.owner.distribution == "encoderkit"]
    parts = {f"{e.part.kind}={e.part.name}": e.part.options for e in ours}
    return {
        "config": {
            "seeds": list(SEEDS),
            **{name: types(options) for name, options in {**SETTINGS, **parts}.items()},
        },
        "record": {spec.name: str(spec.type) for spec in dataclasses.fields(Record)},
    }


def types(options):
    usual = defaults_of(options)
    return {spec.name: [str(spec.type), usual[spec.name]] for spec in dataclasses.fields(options)}


def test_formats_are_as_pinned():
    assert current() == json.loads(GOLDEN.read_text("utf-8"))


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(current(), indent=1) + "\n", "utf-8")
