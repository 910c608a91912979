"""Trains with the Trainer of transformers, as one who has never heard of traceq would."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Blocks(torch.utils.data.Dataset):
    def __len__(self):
        return 8000

    def __getitem__(self, index):
        tokens = torch.arange(32) * (1 + index % 7) % 64
        return {"input_ids": tokens, "labels": tokens}


if __name__ == "__main__":
    sizes = {"n_layer": 2, "n_embd": 64, "n_head": 2, "vocab_size": 64, "n_positions": 32}
    arguments = TrainingArguments(
        output_dir="out",
        max_steps=4000,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))
    Trainer(model, arguments, train_dataset=Blocks()).train()
