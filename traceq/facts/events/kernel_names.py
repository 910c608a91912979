"""Short kernel names: families that match two traces, and for people what a kernel does, or a distinctive name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.device_work import device_work
from traceq.facts.events.kernels import launched_kernels
from traceq.facts.memo import once_per_trace
from traceq.frozen import frozen
from traceq.grouping import group
from traceq.model import Trace

_TENSILE = re.compile(r"\b(Cijk_[A-Z]\w{3}_[A-Z]\w{3})_\w*?_(MT\d+x\d+x\d+)_\w+")
"""Names of ROCm's products of matrices: they begin alike, and their tiles tell them apart."""
_RETURNS = re.compile(r"^(void|std::enable_if<.*?>::type) ")
"""What a kernel returns; templates of cuBLAS write `void` so."""
_NCCL = re.compile(r"^nccl(Dev|Sym|SymDev|Symk|SymkDev)?Kernel_(?P<name>[A-Za-z]+)")
_MANGLED, _LENGTH = re.compile(r"^_ZN?K?(?=\d)"), re.compile(r"\d{1,3}")
_MANGLED_PART = re.compile(r"L[a-z]n?\d+E|DF\d+[b_x]?|S[0-9A-Z]{0,4}_|(?P<length>\d{1,3})")
"""In the template arguments of a mangled name: values, types of floats, substitutions, and the length of a word."""
_NAMESPACES = re.compile(r"\b(at::native::|at_cuda_detail::|c10::|std::)|\(anonymous namespace\)::")
_WORD = re.compile(r"(?<!\w)[A-Za-z_]\w+\b(?!::)")
_UNINFORMATIVE = re.compile(
    r"^((float|double|half|int|long|short|char|bool|signed|unsigned|const|true|false|void|__half)\d*|__nv_\w+)$"
    r"|^(BFloat16|Half|OpaqueType|TensorIteratorBase|(?=\w*TensorList)\w+Metadata|Array|array|Var|NullType|lambda|operator|\w+_t|enable_\w+|\w*[Pp]olicy\w*)$"
    r"|^(gpu_kernel_impl(_nocast)?|gpu_index_kernel|func_wrapper_t|ReduceOp|[AB]?[BU]?(Unary|Binary)Functor)$"
)
"""Words among template arguments that are types, or wrappers around the name of the operation."""
_WRAPPER = re.compile(r"^(?=\w+Op)\w+Functor$")
"""Functors of ops on lists of tensors, which apply the operation that follows."""
_LOOP = re.compile(
    r"(^|::)((?>\w*?elementwise_)(?>\w*?kernel)\w*|(?P<reduce>reduce)_kernel|(?P<list>multi_tensor_apply)_kernel)$"
)
"""Kernels of torch that only loop over elements: what they compute is a template argument."""
_AROUND = re.compile(
    r"^(CUDAFunctor(On(Self|Other))?_|launch_|_cuda_)"
    r"|(_cuda|_kernel|_impl|_internal|_scalar|_tensor|_functor|CUDA|Kernel|Impl|(Math|Nan)?Functor|Ops){1,8}$"
)
"""What surrounds the operation in names of functions and functors, as in `sqrt_kernel_cuda`."""
_OPERATORS = {"plus": "add", "minus": "sub", "multiplies": "mul", "divides": "div"}
"""Function objects of the standard library."""
_COPY = re.compile(r"(direct|(?P<one>b?float\d+)(to(?P<other>float32))?)_copy|copy_device_to_device|copy")
"""Operations that copy: two kernels of torch name the one type that is not that of their lambda."""
_LAMBDA = re.compile(r"\{lambda\((?P<type>[\w:<> ]+)\)#\d+\}")
_CASTS = re.compile("::LoadWithCast<")
_CASTS_NOT = re.compile(r"::LoadWithoutCast\b|\bgpu_kernel_impl_nocast<|\bvectorized_elementwise_kernel<")
_SHORT_TYPES = {
    "bfloat16": "bf16", "half": "fp16", "float16": "fp16", "float": "fp32", "float32": "fp32", "double": "fp64",
    "long": "int64", "long int": "int64", "int": "int32", "short": "int16", "short int": "int16", "char": "int8",
    "signed char": "int8", "unsigned char": "uint8", "bool": "bool",
}  # fmt: skip
_GENERIC = re.compile(r"\b(\w+::)(?:Gemm)?Kernel\b(?!::)")
"""Names of classes that only their namespace tells from others."""
_FORMAT = re.compile(r"(?:_|\b)(e[2-5]m[0-3])(?![0-9])")
"""Formats of 8 bits or fewer: operands of kernels that are else alike."""
_TYPE = re.compile(r'"([^"]*)"')


def kernel_family(name: str) -> str:
    """Return a kernel's name without return type, template arguments, arguments and NCCL's changing prefix.

    A mangled name is decoded up to its first template argument. Formats of 8 bits or fewer stay, as work in another
    one is other work.
    """
    nccl = _NCCL.match(name)
    if nccl:
        return f"nccl {nccl['name']}"
    whole, name = name, _demangled(name)[0]
    name = _RETURNS.sub("", name).replace("(anonymous namespace)::", "")
    head = re.split(r"[<(]", name, maxsplit=1)[0] or name
    return _with_arguments(head, _formats(whole, head))


class CopyTypes(NamedTuple):
    """Types of elements that a kernel copies, like `bf16`; "" where unknown. `is_cast`: they are known to differ."""

    source: str
    target: str
    is_cast: bool

    @property
    def text(self) -> str:
        """`copy bf16->fp32`, `copy to fp32` from an unknown type, `copy fp32`, or `copy`."""
        if self.is_cast:
            return f"copy {self.source}->{self.target}" if self.source else f"copy to {self.target}"
        return f"copy {self.target}" if self.source and self.target else "copy"


def short_kernel(name: str, op: str = "", types: Sequence[str] = ()) -> str:
    """Return what a kernel does, like `mul`, `reduce sum`, `foreach add` or `copy bf16->fp32`, where it is a loop.

    `op` is the one that launched it, which tells what a cut name does not, and `types` those of its inputs. Other
    kernels have their name without the namespaces that all kernels of torch share, types and sizes; of the template
    arguments only what names the operation, and formats of 8 bits or fewer.
    """
    if (copied := copy_types(name, op, types)) is not None:
        return copied.text
    head, words = _head_and_words(name)
    operation = words[: 2 if words and _WRAPPER.match(words[0]) else 1]
    return _operation(name, op) or _with_arguments(head, [*operation, *_formats(name, head)])


def copy_types(name: str, op: str = "", types: Sequence[str] = ()) -> CopyTypes | None:
    """Return what a kernel copies, by the inputs of its op, else by its own name; None for other kernels.

    A name has the type of the lambda alone, which is the target, and whether the source is of the same type.
    """
    copy = _COPY.fullmatch(_operation(name, op))
    if copy is None:
        return None
    if op == "aten::copy_" and len(types) > 1 and types[0] and types[1]:
        target, source = map(_short_type, types[:2])
        return CopyTypes(source, target, source != target)
    parameter = _LAMBDA.search(name)
    of_lambda, one = _short_type(parameter["type"] if parameter else ""), _short_type(copy["one"] or "")
    if copy["other"]:
        return CopyTypes(one, _short_type(copy["other"]), is_cast=True)
    if one and not of_lambda.startswith(one):
        return CopyTypes(of_lambda, one, is_cast=True)
    return CopyTypes(of_lambda if _CASTS_NOT.search(name) else "", of_lambda, bool(of_lambda and _CASTS.search(name)))


def _short_type(text: str) -> str:
    """Return `bf16` for `c10::BFloat16` and for `bfloat16`."""
    name = text.removeprefix("c10::").lower()
    return _SHORT_TYPES.get(name, name)


def _operation(name: str, op: str) -> str:
    """Return `mul`, `reduce sum`, `foreach add` of a kernel that loops over elements; "" of others, and if unknown."""
    head, words = _head_and_words(name)
    if (loop := _LOOP.search(head)) is None:
        return ""
    if words and _WRAPPER.match(words[0]) and len(words) > 1:
        operation = _OPERATORS.get(words[1], words[1].lower())
        operation = f"addc{operation}" if words[0].startswith("Pointwise") else operation
    elif words:
        operation = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", _AROUND.sub("", words[0])).lower()
    else:
        is_aten, stem = op.startswith("aten::"), op.removeprefix("aten::").strip("_").removeprefix("foreach_")
        operation = _AROUND.sub("", stem) if is_aten else ""
    return " ".join(filter(None, [loop["list"] and "foreach", loop["reduce"], operation])) if operation else ""


def _head_and_words(name: str) -> tuple[str, list[str]]:
    """Return the name before its arguments, and those words of its template arguments that name an operation."""
    demangled, words = _demangled(name)
    demangled = _NAMESPACES.sub("", _RETURNS.sub("", demangled))
    head = re.split(r"[<(]", demangled, maxsplit=1)[0] or demangled
    arguments = _template_arguments(demangled[len(head) :])
    words = [word for word in [*words, *_WORD.findall(arguments)] if not _UNINFORMATIVE.match(word)]
    if words and (generic := _GENERIC.search(arguments)) and words[0] == generic[0].removeprefix(generic[1]):
        words[0] = generic[0]
    return head, words


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
    """Return the content of the angle brackets that a text begins with, without a word that is cut; "" without any."""
    if not text.startswith("<"):
        return ""
    depth = 0
    for index, letter in enumerate(text):
        depth += (letter == "<") - (letter == ">")
        if depth == 0:
            return text[1:index]
    return re.sub(r"(?<![\w:])[\w:]+$", "", text[1:])


def _demangled(name: str) -> tuple[str, list[str]]:
    """Return (`cutlass::device_kernel`, names of its template arguments) for `_ZN7cutlass13device_kernelI...`.

    Other names as they are, without arguments.
    """
    prefix = _MANGLED.match(name)
    if prefix is None:
        return name, []
    parts, position = [], prefix.end()
    while length := _LENGTH.match(name, position):
        position = length.end() + int(length[0])
        parts.append(name[length.end() : position])
    whole = "::".join(part for part in parts if not part.startswith("_GLOBAL_"))
    words = []
    while part := _MANGLED_PART.search(name, position):
        position, end = part.end(), part.end() + int(part["length"] or 0)
        if name[position:end].isidentifier():
            if name[end : end + 1] in ("I", "E"):  # a namespace is followed by another name
                words.append(name[position:end])
            position = end
    return (whole, words) if whole else (name, [])


@frozen(eq=False)
class _KernelLabels:
    """Short names of D pieces of device work: `label` int64[D] into `names`, and `copies` of each name, None of others.

    A name is that of `short_kernel`, with the types that the launching op shows.
    """

    names: tuple[str, ...]
    label: NDArray[np.int64]
    copies: tuple[CopyTypes | None, ...]


@once_per_trace
def kernel_labels(trace: Trace) -> _KernelLabels:
    """Return what each piece of device work does, by its name and the op that launched it."""
    events, work, kernels = trace.events, device_work(trace), launched_kernels(trace)
    op = np.full(len(work), -1)
    op[kernels.work] = kernels.op
    op_name, types = (np.where(op >= 0, column[op], -1) for column in (events.name, events.types))
    groups, strings = group([events.name[work.rows], op_name, types]), [*events.strings, ""]
    numbers, copies = dict[str, int](), dict[str, CopyTypes | None]()
    of_group = np.empty(len(groups.keys), np.int64)
    for index, keys in enumerate(groups.keys.tolist()):
        name, of_op, of_types = (strings[key] for key in keys)
        inputs = _TYPE.findall(of_types)
        short = short_kernel(name, of_op, inputs).strip()
        of_group[index] = numbers.setdefault(short, len(numbers))
        copies.setdefault(short, copy_types(name, of_op, inputs))
    return _KernelLabels(tuple(numbers), of_group[groups.group_ids], tuple(copies.values()))
