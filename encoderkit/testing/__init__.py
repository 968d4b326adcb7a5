"""The door for tests of parts: a place to build one at, and a batch to call it with."""

from __future__ import annotations

from encoderkit.testing.make import make_ctx, make_site

__all__ = ["make_ctx", "make_site"]
