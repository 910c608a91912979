"""Two CPU ranks that exchange tokens by all_to_all_single: `python expert_exchange_job.py FOLDER`.

Each writes its trace, and `tokens` of its experts in each layer as it counted them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

NUM_RANKS, NUM_LAYERS, NUM_TOKENS, WIDTH = 2, 3, 64, 8


def main(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=NUM_RANKS)
    torch.manual_seed(rank)
    num_received = []
    with torch.profiler.profile(record_shapes=True) as profiler:
        for layer in range(NUM_LAYERS):
            of_rank = (torch.rand(NUM_TOKENS) < 0.6 + 0.1 * layer).sort().values.long()
            sent = torch.bincount(of_rank, minlength=NUM_RANKS)
            received = torch.empty_like(sent)
            dist.all_to_all_single(received, sent)
            splits = received.tolist(), sent.tolist()
            tokens = torch.empty(sum(splits[0]), WIDTH)
            dist.all_to_all_single(tokens, torch.rand(NUM_TOKENS, WIDTH), *splits)
            dist.all_to_all_single(torch.empty(NUM_TOKENS, WIDTH), tokens.relu(), splits[1], splits[0])
            num_received.append(len(tokens))
    profiler.export_chrome_trace(f"{folder}/rank{rank}.json")
    Path(folder, f"tokens{rank}.txt").write_text(json.dumps(num_received))
    dist.barrier()  # gloo aborts a process whose peer leaves while its threads still answer
    dist.destroy_process_group()


if __name__ == "__main__":
    spawn(main, (sys.argv[1],), NUM_RANKS)
