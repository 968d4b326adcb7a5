"""A sweep as one writes it with Hydra alone: a task function, and a result for each job.

    python benchmarks/plain_hydra.py --config-dir DIR -m norm=layernorm,rmsnorm seed=0,1

It takes the networks, the task and the loop from encoderkit, and keeps no checkpoint and no curve.
`benchmarks/sweep.py` writes DIR, and measures this beside `encoderkit sweep`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from encoderkit.config.check import check
from encoderkit.data.build import build_task
from encoderkit.nn.build import build_model
from encoderkit.plugins import registry
from encoderkit.train.loop import fit


@hydra.main(config_path=None, config_name="config", version_base=None)
def main(tree: DictConfig) -> None:
    """Train and validate one point."""
    values: Any = OmegaConf.to_container(tree, resolve=True)
    config = check(values, registry())
    task = build_task(config)
    model = build_model(config, task.vocab, task.outputs)
    found = fit(model, task, config.train, config.run, None)
    result = {"config": values, "metrics": found.metrics, "seconds": {"train": found.seconds}}
    place = Path(HydraConfig.get().runtime.output_dir)
    (place / "result.json").write_text(json.dumps(result), "utf-8")


if __name__ == "__main__":
    main()
