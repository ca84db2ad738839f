"""A plan inside torchtitan's own trainer: ``torchrun ... -m torchtitan.train --module in_torchtitan --config plan``."""

from torchtitan.models.llama3.config_registry import llama3_debugmodel
from torchtitan.trainer import Trainer

import meshwright


def plan() -> Trainer.Config:
    config = llama3_debugmodel()  # its optimizer, data, loss, checkpoints; any configuration will do
    return meshwright.torchtitan_config("plan.json", config)
