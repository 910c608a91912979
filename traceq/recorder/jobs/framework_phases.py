"""Functions of training frameworks that are a phase of the step: what a framework does between the calls of torch."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

from torch.nn import Module

__all__ = ["ENGINE_METHODS", "imported_functions", "owners"]

ENGINE_METHODS = (
    ("LightningModule", "training_step", "forward"),
    ("DeepSpeedEngine", "backward", "backward"),
    ("DeepSpeedEngine", "step", "optimizer"),
)
"""Methods of models: base class, method, phase."""

_LIGHTNING = (
    (".trainer.call", "_call_callback_hooks", "callbacks"),
    (".trainer.call", "_call_lightning_module_hook", "module_hooks"),
    (".trainer.connectors.logger_connector", "_LoggerConnector.on_batch_end", "log"),
    (".trainer.connectors.logger_connector", "_LoggerConnector.update_train_step_metrics", "log"),
    (".strategies.strategy", "Strategy.batch_to_device", "h2d"),
    (".loops.training_epoch_loop", "_TrainingEpochLoop._broadcast_sigterm_tensor", "sigterm_broadcast"),
)
_FUNCTIONS = (
    ("torch.optim.lr_scheduler", "LRScheduler.step", "lr_scheduler"),
    ("accelerate.data_loader", "send_to_device", "h2d"),
    ("transformers.trainer_callback", "CallbackHandler.call_event", "callbacks"),
    ("transformers.trainer", "Trainer._prepare_inputs", "h2d"),
    ("transformers.trainer", "Trainer.floating_point_ops", "count_flops"),
    ("transformers.trainer", "Trainer._maybe_log_save_evaluate", "log"),
    ("keras.src.optimizers.base_optimizer", "BaseOptimizer.apply", "optimizer"),
    ("keras.src.trainers.trainer", "Trainer.compute_metrics", "log"),
    ("keras.src.callbacks.callback_list", "CallbackList.on_train_batch_begin", "callbacks"),
    ("keras.src.callbacks.callback_list", "CallbackList.on_train_batch_end", "callbacks"),
    ("fastai.optimizer", "Optimizer.step", "optimizer"),
    ("fastai.optimizer", "Optimizer.zero_grad", "zero_grad"),
    ("fastai.learner", "Learner.__call__", "callbacks"),
    *((f"lightning.pytorch{module}", name, phase) for module, name, phase in _LIGHTNING),
    *((f"pytorch_lightning{module}", name, phase) for module, name, phase in _LIGHTNING),
)
"""Functions: module, name in it, phase; none of them is an event, so that no step begins in one."""


def imported_functions() -> Iterator[tuple[Any, str, str]]:
    """Yield (owner, name, phase) of the functions of all frameworks that are imported, and have them."""
    for module, path, phase in _FUNCTIONS:
        class_name, _, name = path.rpartition(".")
        owner = sys.modules.get(module)
        if class_name:
            owner = getattr(owner, class_name, None)
        if hasattr(owner, name):
            yield owner, name, phase


def owners(models: Sequence[Module], base: str) -> list[Module]:
    """Return the modules in the models whose class is, or is derived from, one of this name."""
    modules = (module for model in models for module in model.modules())
    return [module for module in modules if any(class_.__name__ == base for class_ in type(module).__mro__)]
