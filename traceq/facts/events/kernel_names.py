"""Kernels' names, cut to what tells them apart: for matching two traces, and for people."""

from __future__ import annotations

import re

__all__ = ["kernel_family", "short_kernel"]

_NCCL = re.compile(r"^nccl(Dev|Sym|SymDev|Symk|SymkDev)?Kernel_(?P<name>[A-Za-z]+)")
_MANGLED, _LENGTH = re.compile(r"^_ZN?K?(?=\d)"), re.compile(r"\d{1,3}")
_NAMESPACES = re.compile(r"\b(at::native::|at_cuda_detail::|c10::|std::)|\(anonymous namespace\)::")
_WORD = re.compile(r"(?<!\w)[A-Za-z_]\w+\b(?!::)")
_SAYS_NOTHING = re.compile(
    r"^(float|double|half|int|long|short|char|bool|signed|unsigned|const|true|false|void|__half|__nv_\w+)\d*$"
    r"|^(BFloat16|Half|OpaqueType|TensorIteratorBase|Array|array|Var|NullType|lambda|operator|\w+_t|enable_\w+|\w*[Pp]olicy\w*)$"
    r"|^(gpu_kernel_impl(_nocast)?|gpu_index_kernel|func_wrapper_t|ReduceOp|[AB]?[BU]?(Unary|Binary)Functor)$"
)
"""Words among template arguments that are types, or that wrap what says which operation runs."""


def kernel_family(name: str) -> str:
    """A kernel's name without return type, template arguments, arguments and nccl's changing prefix; a mangled one as
    it was written, so far.
    """
    found = _NCCL.match(name)
    if found:
        return f"nccl {found['name']}"
    name = _demangled(name)
    name = name.removeprefix("void ").replace("(anonymous namespace)::", "")
    return re.split(r"[<(]", name, maxsplit=1)[0] or name


def short_kernel(name: str) -> str:
    """`elementwise_kernel<MulFunctor>`: without the namespaces that all kernels of torch share, types and sizes; of the
    template arguments the first that says which operation runs.
    """
    name = _NAMESPACES.sub("", _demangled(name).removeprefix("void "))
    head = re.split(r"[<(]", name, maxsplit=1)[0] or name
    words = _WORD.findall(_template_arguments(name[len(head) :]))
    what = next((word for word in words if not _SAYS_NOTHING.match(word)), "")
    return f"{head}<{what}>" if what else head


def _template_arguments(text: str) -> str:
    """What stands in the angle brackets with which a text begins; "" if it begins with none."""
    if not text.startswith("<"):
        return ""
    depth = 0
    for at, letter in enumerate(text):
        depth += (letter == "<") - (letter == ">")
        if depth == 0:
            return text[1:at]
    return text[1:]


def _demangled(name: str) -> str:
    """`_ZN7cutlass13device_kernelI...` as `cutlass::device_kernel`."""
    begins = _MANGLED.match(name)
    if begins is None:
        return name
    parts, at = [], begins.end()
    while length := _LENGTH.match(name, at):
        at = length.end() + int(length[0])
        parts.append(name[length.end() : at])
    return "::".join(part for part in parts if not part.startswith("_GLOBAL_")) or name
