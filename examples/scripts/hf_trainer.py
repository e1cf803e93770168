"""Fine-tuning with Hugging Face's Trainer, as its own examples do it: arguments from the command line."""

from dataclasses import dataclass, field

import torch
from transformers import BertConfig, BertForSequenceClassification, HfArgumentParser, Trainer, TrainingArguments


@dataclass
class ModelArguments:
    layers: int = field(default=12)
    hidden: int = field(default=768)
    max_length: int = field(default=128)


class Sentences(torch.utils.data.Dataset):
    def __init__(self, length, samples=4096, vocabulary=30522):
        self.length, self.samples, self.vocabulary = length, samples, vocabulary

    def __len__(self):
        return self.samples

    def __getitem__(self, i):
        tokens = torch.randint(self.vocabulary, (self.length,))
        return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": i % 2}


def main():
    arguments, training = HfArgumentParser((ModelArguments, TrainingArguments)).parse_args_into_dataclasses()
    config = BertConfig(
        num_hidden_layers=arguments.layers,
        hidden_size=arguments.hidden,
        num_attention_heads=arguments.hidden // 64,
        intermediate_size=4 * arguments.hidden,
    )
    trainer = Trainer(
        model=BertForSequenceClassification(config),
        args=training,
        train_dataset=Sentences(arguments.max_length),
        eval_dataset=Sentences(arguments.max_length, samples=256),
    )
    trainer.train()
    trainer.save_model()


if __name__ == "__main__":
    main()
