"""A user's loop on accelerate, for any launcher."""

from __future__ import annotations

import sys

import torch
from accelerate import Accelerator

import traceq

accelerator = Accelerator(cpu=True)
model = torch.nn.Linear(8, 8)
model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.01))
num_steps = int(sys.argv[2]) if len(sys.argv) > 2 else 2
with traceq.record(sys.argv[1], steps=num_steps, trace_steps=2) as recording:
    for batch in recording.steps(torch.ones(2, 8) for _ in range(2 * num_steps + 60)):
        with recording.phase("forward"):
            loss = model(batch).square().mean()
        with recording.phase("bwd"):
            accelerator.backward(loss)
        with recording.phase("optim_step"):
            optimizer.step()
            optimizer.zero_grad()
model, optimizer = accelerator.free_memory(model, optimizer)  # else threads of the group may outlive Python, and abort
accelerator.end_training()
