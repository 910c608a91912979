"""Trains with an engine of DeepSpeed, as one who has never heard of traceq would."""

import deepspeed
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

if __name__ == "__main__":
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
    data = TensorDataset(torch.randn(64000, 64), torch.zeros(64000, dtype=torch.long))
    engine, _, loader, _ = deepspeed.initialize(
        model=model,
        model_parameters=model.parameters(),
        training_data=data,
        config={
            "train_micro_batch_size_per_gpu": 32,
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
            "gradient_clipping": 1.0,
        },
    )
    for _ in range(10):
        for images, labels in loader:
            engine.backward(cross_entropy(engine(images), labels))
            engine.step()
