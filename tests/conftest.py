"""What every test runs under: one thread, and property tests that draw the same each time."""

from __future__ import annotations

import hypothesis
import torch

torch.set_num_threads(1)
hypothesis.settings.register_profile("same", derandomize=True, deadline=None, max_examples=50)
hypothesis.settings.load_profile("same")
