"""Short kernel names: families that match two traces, and distinctive names for people."""

from __future__ import annotations

import re

__all__ = ["cut_name", "kernel_family", "short_kernel", "without_tuning"]

_TENSILE = re.compile(r"\b(Cijk_[A-Z]\w{3}_[A-Z]\w{3})_\w*?_(MT\d+x\d+x\d+)_\w+")
"""Names of ROCm's products of matrices: they begin alike, and their tiles tell them apart."""
_NCCL = re.compile(r"^nccl(Dev|Sym|SymDev|Symk|SymkDev)?Kernel_(?P<name>[A-Za-z]+)")
_MANGLED, _LENGTH = re.compile(r"^_ZN?K?(?=\d)"), re.compile(r"\d{1,3}")
_NAMESPACES = re.compile(r"\b(at::native::|at_cuda_detail::|c10::|std::)|\(anonymous namespace\)::")
_WORD = re.compile(r"(?<!\w)[A-Za-z_]\w+\b(?!::)")
_UNINFORMATIVE = re.compile(
    r"^(float|double|half|int|long|short|char|bool|signed|unsigned|const|true|false|void|__half|__nv_\w+)\d*$"
    r"|^(BFloat16|Half|OpaqueType|TensorIteratorBase|Array|array|Var|NullType|lambda|operator|\w+_t|enable_\w+|\w*[Pp]olicy\w*)$"
    r"|^(gpu_kernel_impl(_nocast)?|gpu_index_kernel|func_wrapper_t|ReduceOp|[AB]?[BU]?(Unary|Binary)Functor)$"
)
"""Words among template arguments that are types, or wrappers around the name of the operation."""


def kernel_family(name: str) -> str:
    """Return a kernel's name without return type, template arguments, arguments and NCCL's changing prefix.

    A mangled name is decoded up to its first template argument.
    """
    nccl = _NCCL.match(name)
    if nccl:
        return f"nccl {nccl['name']}"
    name = _demangled(name)
    name = name.removeprefix("void ").replace("(anonymous namespace)::", "")
    return re.split(r"[<(]", name, maxsplit=1)[0] or name


def short_kernel(name: str) -> str:
    """Return a short distinctive name such as `elementwise_kernel<MulFunctor>`.

    Without the namespaces that all kernels of torch share, types and sizes; of the template arguments only the first
    that names the operation.
    """
    name = _NAMESPACES.sub("", _demangled(name).removeprefix("void "))
    head = re.split(r"[<(]", name, maxsplit=1)[0] or name
    words = _WORD.findall(_template_arguments(name[len(head) :]))
    operation = next((word for word in words if not _UNINFORMATIVE.match(word)), "")
    return f"{head}<{operation}>" if operation else head


def without_tuning(name: str) -> str:
    """Return `Cijk_Alik_Bljk…MT128x256x32` for the name of a product of ROCm, which lists its parameters; else it."""
    return _TENSILE.sub(r"\1…\2", name)


def cut_name(name: str, longest: int) -> str:
    """Return a name of at most so many characters."""
    return name if len(name) <= longest else f"{name[: longest - 1]}…"


def _template_arguments(text: str) -> str:
    """Return the content of the angle brackets that a text begins with; "" if it begins with none."""
    if not text.startswith("<"):
        return ""
    depth = 0
    for index, letter in enumerate(text):
        depth += (letter == "<") - (letter == ">")
        if depth == 0:
            return text[1:index]
    return text[1:]


def _demangled(name: str) -> str:
    """Return `cutlass::device_kernel` for `_ZN7cutlass13device_kernelI...`; other names unchanged."""
    prefix = _MANGLED.match(name)
    if prefix is None:
        return name
    parts, position = [], prefix.end()
    while length := _LENGTH.match(name, position):
        position = length.end() + int(length[0])
        parts.append(name[length.end() : position])
    return "::".join(part for part in parts if not part.startswith("_GLOBAL_")) or name
