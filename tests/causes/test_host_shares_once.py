"""What one side calls once and the other does as usual is no difference between the two."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from traceq.causes.host_shares import _known_to

NS = st.integers(0, 50)
SHARES = st.builds(
    lambda usual, once: [
        *((edge, False, *ns) for edge, *ns in usual),
        *((edge, True, *ns) for edge, ns in once.items()),
    ],
    st.lists(st.tuples(st.integers(0, 4), NS, NS), min_size=1, max_size=20),
    st.dictionaries(st.integers(0, 4), st.tuples(NS, NS)),
)
"""(edge, whether it is once, ns of one side, ns of the other); of an edge one share is once."""


def added(shares: list[tuple[int, bool, int, int]]) -> list[int]:
    edge, is_once, ns, other = map(np.array, zip(*shares, strict=True))
    return _known_to(other, ns, edge, is_once).tolist()


def test_time_that_the_other_side_has_as_usual_is_not_once() -> None:
    """A sync reveals 27 of which the device hid 20 on the other side, in an op; 7 are once."""
    assert added([(0, False, 0, 20), (0, True, 27, 0), (1, False, 5, 9)]) == [20, -20, 0]


def test_a_pause_that_one_side_alone_has_stays_once() -> None:
    assert added([(0, False, 10, 10), (0, True, 300, 0)]) == [0, 0]


@given(SHARES)
def test_each_edge_keeps_its_time_and_no_share_exceeds_that_of_the_other_side(
    shares: list[tuple[int, bool, int, int]],
) -> None:
    more = added(shares)
    for edge in {edge for edge, *_ in shares}:
        assert sum(m for m, (of, *_) in zip(more, shares, strict=True) if of == edge) == 0
    for m, (_, is_once, ns, other) in zip(more, shares, strict=True):
        assert (m <= 0 and ns + m >= 0) if is_once else 0 <= m <= max(other - ns, 0)
