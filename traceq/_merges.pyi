from numpy import int64
from numpy.typing import NDArray

def count_before(starts: NDArray[int64], instants: NDArray[int64], count: NDArray[int64], /) -> None: ...
def span_index(parts: NDArray[int64], instants: NDArray[int64], index: NDArray[int64], /) -> None: ...
def last_open(
    start: NDArray[int64],
    end: NDArray[int64],
    parent: NDArray[int64],
    instants: NDArray[int64],
    levels: int,
    index: NDArray[int64],
    /,
) -> None: ...
