from numpy import int32, int64
from numpy.typing import NDArray

NUMBER_BYTES: int

def longest_paths(
    first: NDArray[int32],
    source: NDArray[int32],
    weight: NDArray[int64],
    time: NDArray[int64],
    choice: NDArray[int32],
    /,
) -> None: ...
def trace_back(node: int, choice: NDArray[int32], source: NDArray[int32], path: NDArray[int32], /) -> int: ...
def paths_to(
    since: NDArray[int64],
    choice: NDArray[int32],
    source: NDArray[int32],
    time: NDArray[int64],
    path: NDArray[int32],
    /,
) -> None: ...
def least_into_each(first: NDArray[int32], slack: NDArray[int64], chosen: NDArray[int32], /) -> int: ...
def next_marked(marked: NDArray[int32], following: NDArray[int32], nearest: NDArray[int32], /) -> None: ...
def topological_order(
    first: NDArray[int32],
    target: NDArray[int32],
    ready: NDArray[int32],
    degree: NDArray[int32],
    queue: NDArray[int32],
    /,
) -> int: ...
def shortest_edits(
    a: NDArray[int64], b: NDArray[int64], most: int, in_a: NDArray[int64], in_b: NDArray[int64], /
) -> int: ...
