"""The door for tests of parts: the conformance kit, a place to build a part at, a batch to call it.

    TestConformance = encoderkit.testing.conformance("norm=prmsnorm", "norm.share=0.25")

is all that a test file needs: pytest then shows one test for each property.
"""

from __future__ import annotations

from encoderkit.testing.conform import check, conformance
from encoderkit.testing.examine import Property, Result
from encoderkit.testing.make import make_ctx, make_site
from encoderkit.testing.references import softmax_attention

__all__ = [
    "Property",
    "Result",
    "check",
    "conformance",
    "make_ctx",
    "make_site",
    "softmax_attention",
]
