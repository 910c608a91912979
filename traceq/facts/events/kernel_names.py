"""Short kernel names: families that match two traces, and distinctive names for people."""

from __future__ import annotations

import re
from collections.abc import Sequence

__all__ = [
    "kernel_family",
    "short_kernel",
    "without_tunings",
]

_TENSILE = re.compile(r"\b(Cijk_[A-Z]\w{3}_[A-Z]\w{3})_\w*?_(MT\d+x\d+x\d+)_\w+")
"""Names of ROCm's products of matrices: they begin alike, and their tiles tell them apart."""
_NCCL = re.compile(r"^nccl(Dev|Sym|SymDev|Symk|SymkDev)?Kernel_(?P<name>[A-Za-z]+)")
_MANGLED, _LENGTH = re.compile(r"^_ZN?K?(?=\d)"), re.compile(r"\d{1,3}")
_NAMESPACES = re.compile(r"\b(at::native::|at_cuda_detail::|c10::|std::)|\(anonymous namespace\)::")
_WORD = re.compile(r"(?<!\w)[A-Za-z_]\w+\b(?!::)")
_UNINFORMATIVE = re.compile(
    r"^(float|double|half|int|long|short|char|bool|signed|unsigned|const|true|false|void|__half|__nv_\w+)\d*$"
    r"|^(BFloat16|Half|OpaqueType|TensorIteratorBase|\w*TensorList\w*Metadata|Array|array|Var|NullType|lambda|operator|\w+_t|enable_\w+|\w*[Pp]olicy\w*)$"
    r"|^(gpu_kernel_impl(_nocast)?|gpu_index_kernel|func_wrapper_t|ReduceOp|[AB]?[BU]?(Unary|Binary)Functor)$"
)
"""Words among template arguments that are types, or wrappers around the name of the operation."""
_WRAPPER = re.compile(r"^\w+Op\w*Functor$")
"""Functors of ops on lists of tensors, which apply the operation that follows."""
_GENERIC = re.compile(r"\b(\w+::)(?:Gemm)?Kernel\b(?!::)")
"""Names of classes that only their namespace tells from others."""
_FORMAT = re.compile(r"(?:_|\b)(e[2-5]m[0-3])(?![0-9])")
"""Formats of 8 bits or fewer: operands of kernels that are else alike."""


def kernel_family(name: str) -> str:
    """Return a kernel's name without return type, template arguments, arguments and NCCL's changing prefix.

    A mangled name is decoded up to its first template argument. Formats of 8 bits or fewer stay, as work in another
    one is other work.
    """
    nccl = _NCCL.match(name)
    if nccl:
        return f"nccl {nccl['name']}"
    whole, name = name, _demangled(name)
    name = name.removeprefix("void ").replace("(anonymous namespace)::", "")
    head = re.split(r"[<(]", name, maxsplit=1)[0] or name
    return _with_arguments(head, _formats(whole, head))


def short_kernel(name: str) -> str:
    """Return a short distinctive name such as `elementwise_kernel<MulFunctor>`.

    Without the namespaces that all kernels of torch share, types and sizes; of the template arguments only what names
    the operation, and formats of 8 bits or fewer.
    """
    whole, name = name, _NAMESPACES.sub("", _demangled(name).removeprefix("void "))
    head = re.split(r"[<(]", name, maxsplit=1)[0] or name
    arguments = _template_arguments(name[len(head) :])
    words = [word for word in _WORD.findall(arguments) if not _UNINFORMATIVE.match(word)]
    if words and (generic := _GENERIC.search(arguments)) and words[0] == generic[0].removeprefix(generic[1]):
        words[0] = generic[0]
    operation = words[: 2 if words and _WRAPPER.match(words[0]) else 1]
    return _with_arguments(head, [*operation, *_formats(whole, head)])


def _with_arguments(head: str, words: Sequence[str]) -> str:
    return f"{head}<{' '.join(words)}>" if words else head


def _formats(name: str, head: str) -> list[str]:
    """Return the formats of 8 bits or fewer in the arguments of a name, in their order; none if its head has any."""
    return [] if _FORMAT.search(head) else list(dict.fromkeys(_FORMAT.findall(name)))


def without_tunings(names: Sequence[str]) -> list[str]:
    """Return `Cijk_Alik_Bljk…MT128x256x32` for names of products of ROCm, which list their parameters; others as is.

    So are those that only their parameters tell from another one of these names.
    """
    short = [_TENSILE.sub(r"\1…\2", name) for name in names]
    of_short: dict[str, set[str]] = {}
    for each, name in zip(short, names, strict=True):
        of_short.setdefault(each, set()).add(name)
    return [each if len(of_short[each]) == 1 else name for each, name in zip(short, names, strict=True)]


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
