"""What a program trains its model under, and whether that is what its launcher was configured for."""

from __future__ import annotations

import gc
import os
from collections.abc import Mapping

__all__ = ["doubt", "wrapper_facts"]

WrapperFacts = Mapping[str, str | int | float]
_WRAPPERS = ("DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule", "DeepSpeedEngine")
_PLUGINS = {"ACCELERATE_USE_FSDP": "FSDP", "ACCELERATE_USE_DEEPSPEED": "DeepSpeed"}
_BRINGS = {"FSDP": {"FullyShardedDataParallel", "FSDPModule"}, "DeepSpeed": {"DeepSpeedEngine"}}


def wrapper_facts(known: WrapperFacts) -> dict[str, str]:
    """For the manifest: the classes of wrappers that are alive, unless they are known, and accelerate's configuration.

    Looks at all objects of the process: call it where nothing is timed.
    """
    facts = {} if "wrapper" in known else {"wrapper": ", ".join(_alive()) or "none"}
    plugins = [name for key, name in _PLUGINS.items() if os.environ.get(key, "").lower() in ("1", "true")]
    return facts | ({"accelerate_config": ", ".join(plugins)} if plugins else {})


def doubt(facts: WrapperFacts) -> str:
    """Accelerate drops a configuration without a word where it cannot follow it, as FSDP's on a CPU; "" if it did."""
    configured, wrapper = str(facts.get("accelerate_config", "")), str(facts.get("wrapper", "none"))
    if not configured or _BRINGS[configured] & set(wrapper.split(", ")):
        return ""
    return f"accelerate was configured for {configured}, and the wrapper of what trains is: {wrapper}"


def _alive() -> list[str]:
    """Wrappers by the names of the classes they are made of: fully_shard makes one of its own for each module."""
    types = {type(found) for found in gc.get_objects()}
    names = {base.__name__ for found in types for base in found.__mro__}
    return [name for name in _WRAPPERS if name in names]
