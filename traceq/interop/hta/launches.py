"""What launched each row of the device, and the rows whose launch lies in the steps that HTA analyses."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["index_correlation", "of_whole_steps"]


def index_correlation(columns: Mapping[str, Any], ids: Mapping[str, int]) -> NDArray[np.int64]:
    """Return int64[N]: `index` of what launched a device row or was launched by a call; 0 if that is no row, else -1.

    Of several rows with one correlation the last one counts.
    """
    index, correlation = columns["index"].astype(np.int64), columns["correlation"].astype(np.int64)
    on_device, is_linked = _on_device(columns, ids), correlation != -1
    device, host = np.flatnonzero(is_linked & on_device), np.flatnonzero(is_linked & ~on_device)
    result: NDArray[np.int64] = np.minimum(correlation, 0)
    for rows, others in ((host, device), (device, host)):
        order = others[np.argsort(correlation[others], kind="stable")]
        num_before = np.searchsorted(correlation[order], correlation[rows], "right")
        rows, last = rows[num_before > 0], order[num_before[num_before > 0] - 1]
        is_partner = correlation[last] == correlation[rows]
        result[rows[is_partner]] = index[last[is_partner]]
    return result


def of_whole_steps(
    columns: Mapping[str, Any], ids: Mapping[str, int], steps: Collection[int], *, include_last: bool
) -> NDArray[np.int64]:
    """Return the rows of HTA's analyses: device work first, as often as rows of the host have its correlation.

    Rows of the host start before the last of the steps, whose symbols are given, or by its end; device work is that of
    these rows.
    """
    ts, correlation = np.asarray(columns["ts"]), np.asarray(columns["correlation"]).astype(np.int64)
    on_device = _on_device(columns, ids)
    host = np.flatnonzero(~on_device)
    if len(host) == 0:
        return np.arange(len(ts))
    marks = host[np.isin(np.asarray(columns["name"])[host], list(steps))]
    if include_last:
        host = host[ts[host] <= np.asarray(columns["end"])[marks if len(marks) else host].max()]
    else:
        host = host[ts[host] < (ts[marks].max() if len(marks) else ts[host].min())]
    device, calls = np.flatnonzero(on_device), np.sort(correlation[host])
    first, last = (np.searchsorted(calls, correlation[device], side) for side in ("left", "right"))
    return np.concatenate([np.repeat(device, last - first), host])


def _on_device(columns: Mapping[str, Any], ids: Mapping[str, int]) -> NDArray[np.bool_]:
    """Return whether HTA counts each row as one of the device: bool[N]."""
    syncs = [ids.get(name, -1) for name in ("Event Sync", "Context Sync")]
    stream, correlation = np.asarray(columns["stream"]), np.asarray(columns["correlation"])
    return ((stream >= 0) & (correlation >= 0)) | np.isin(np.asarray(columns["name"]), syncs)
