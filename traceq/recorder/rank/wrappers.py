"""Distributed wrapper of the training model, and whether it matches the launcher's configuration."""

from __future__ import annotations

import os
from collections.abc import Mapping

from traceq.garbage_collection import live_objects

__all__ = ["wrapper_facts", "wrapper_warning"]

WrapperFacts = Mapping[str, str | int | float]
_WRAPPERS = ("DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule", "DeepSpeedEngine")
_PLUGINS = {"ACCELERATE_USE_FSDP": "FSDP", "ACCELERATE_USE_DEEPSPEED": "DeepSpeed"}
_WRAPPERS_OF_PLUGIN = {"FSDP": {"FullyShardedDataParallel", "FSDPModule"}, "DeepSpeed": {"DeepSpeedEngine"}}


def wrapper_facts(facts: WrapperFacts) -> dict[str, str]:
    """Return facts for the manifest: wrapper classes with live instances, and accelerate's configuration.

    A wrapper that is already in `facts` is kept. Inspects all objects of the process: do not call it while steps are
    timed.
    """
    wrapper = {} if "wrapper" in facts else {"wrapper": ", ".join(_live_wrappers()) or "none"}
    plugins = [name for key, name in _PLUGINS.items() if os.environ.get(key, "").lower() in ("1", "true")]
    return wrapper | ({"accelerate_config": ", ".join(plugins)} if plugins else {})


def wrapper_warning(facts: WrapperFacts) -> str:
    """Return a warning if accelerate silently ignored its configuration, as for FSDP on a CPU; "" if it did not."""
    configured, wrapper = str(facts.get("accelerate_config", "")), str(facts.get("wrapper", "none"))
    if not configured or _WRAPPERS_OF_PLUGIN[configured] & set(wrapper.split(", ")):
        return ""
    return f"accelerate was configured for {configured}, but the wrapper of the training model is: {wrapper}"


def _live_wrappers() -> list[str]:
    """Return the names of wrapper classes with live instances, by base class: fully_shard subclasses each module."""
    types = {type(instance) for instance in live_objects()}
    names = {base.__name__ for type_ in types for base in type_.__mro__}
    return [name for name in _WRAPPERS if name in names]
