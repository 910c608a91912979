"""A training job on a GPU, which knows nothing of traceq: plain, graphed, compiled, captured or offloaded."""

import sys

import torch
from torch import nn

how = sys.argv[1]
device = torch.device("cpu" if how == "offloaded" else "cuda")
model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(8)), nn.Linear(512, 1)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), capturable=how == "captured")
batch = torch.randn(64, 512, device="cuda")


def loss_of(inputs: torch.Tensor) -> torch.Tensor:
    """Return the loss, which a compiled graph writes into the same memory in each step."""
    return model(inputs).square().mean()


def step(inputs: torch.Tensor) -> None:
    """Train on a batch."""
    if how == "offloaded":  # a matrix on the GPU, and a model on the host
        inputs = (inputs @ inputs.T @ inputs).cpu() / 1e4
    loss_of(inputs).backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=how != "captured")


if how == "graphed":
    model = torch.cuda.make_graphed_callables(model, (batch.clone(),))
if how == "compiled":
    loss_of = torch.compile(loss_of, mode="reduce-overhead")
if how == "captured":
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(12):
            step(batch)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        step(batch)
    for _ in range(100):
        graph.replay()
    torch.cuda.synchronize()
else:
    for _ in range(5000):
        step(torch.randn(64, 512, device="cuda"))
sys.stdout.write("trained\n")
