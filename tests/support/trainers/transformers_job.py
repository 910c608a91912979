"""Train with Hugging Face's Trainer on each rank; write a trace of four steps to argv[1]/rank<r>.json."""

# mypy: ignore-errors
from __future__ import annotations

import gc
import os
import sys
import warnings

import torch
from torch.profiler import ProfilerActivity, profile, schedule
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

WAIT, ACTIVE = 4, 4


class Traced(TrainerCallback):
    """Profiles a few steps of two micro-batches each."""

    def on_train_begin(self, *_, **__) -> None:
        path = f"{sys.argv[1]}/rank{os.environ['RANK']}.json"
        self.profiler = profile(
            activities=[ProfilerActivity.CPU],
            schedule=schedule(wait=WAIT - 1, warmup=1, active=ACTIVE),
            on_trace_ready=lambda ready: ready.export_chrome_trace(path),
            record_shapes=True,
        )
        self.profiler.start()

    def on_step_end(self, *_, **__) -> None:
        self.profiler.step()

    def on_train_end(self, *_, **__) -> None:
        self.profiler.stop()


class Tokens(torch.utils.data.Dataset):
    """Random tokens, the same in every run."""

    def __len__(self) -> int:
        return 256

    def __getitem__(self, index):
        tokens = torch.randint(0, 128, (32,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "labels": tokens}


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 128}
    model = LlamaForCausalLM(LlamaConfig(num_attention_heads=4, num_key_value_heads=4, **sizes))
    arguments = TrainingArguments(
        f"{sys.argv[1]}/out",
        max_steps=WAIT + ACTIVE + 1,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        average_tokens_across_devices=True,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    Trainer(model, arguments, train_dataset=Tokens(), callbacks=[Traced()]).train()
    torch.distributed.barrier()  # a rank that leaves first aborts the others' connections
    gc.collect()  # the model and its reference to the group, whose threads may abort the process if they outlive it
    torch.distributed.destroy_process_group()
