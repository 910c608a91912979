from numpy import int64
from numpy.typing import NDArray

def longest_paths(
    first: NDArray[int64],
    source: NDArray[int64],
    weight: NDArray[int64],
    time: NDArray[int64],
    choice: NDArray[int64],
    /,
) -> None: ...
def trace_back(node: int, choice: NDArray[int64], source: NDArray[int64], path: NDArray[int64], /) -> int: ...
def paths_to(
    since: NDArray[int64],
    choice: NDArray[int64],
    source: NDArray[int64],
    time: NDArray[int64],
    path: NDArray[int64],
    /,
) -> None: ...
def least_into_each(first: NDArray[int64], slack: NDArray[int64], chosen: NDArray[int64], /) -> int: ...
def next_marked(marked: NDArray[int64], following: NDArray[int64], nearest: NDArray[int64], /) -> None: ...
def topological_order(
    first: NDArray[int64],
    target: NDArray[int64],
    ready: NDArray[int64],
    degree: NDArray[int64],
    queue: NDArray[int64],
    /,
) -> int: ...
