"""Trains with Lightning, as one who has never heard of traceq would."""

import sys

import lightning
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset


class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))

    def forward(self, images):
        return self.layers(images)

    def training_step(self, batch, _):
        images, labels = batch
        loss = cross_entropy(self(images), labels)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters())
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1000)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


if __name__ == "__main__":
    options = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "max_steps": 2000}
    data = TensorDataset(torch.randn(4000, 64), torch.zeros(4000, dtype=torch.long))
    trainer = lightning.Trainer(accelerator="cpu", devices=int(sys.argv[1]), gradient_clip_val=1.0, **options)
    trainer.fit(Net(), DataLoader(data, batch_size=32))
