"""A network that transformers does not know."""

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput


class GuestConfig(PretrainedConfig):
    model_type = "guest_net"

    def __init__(self, hidden_size=8, num_hidden_layers=2, vocab_size=400, **more):
        super().__init__(**more)
        self.hidden_size, self.num_hidden_layers, self.vocab_size = (
            hidden_size,
            num_hidden_layers,
            vocab_size,
        )


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inside = nn.Linear(width, width)

    def forward(self, x):
        return x + torch.tanh(self.inside(x))


class GuestModel(PreTrainedModel):
    config_class = GuestConfig

    def __init__(self, config):
        super().__init__(config)
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(
            Layer(config.hidden_size) for _ in range(config.num_hidden_layers)
        )
        self.post_init()

    def forward(self, input_ids, **_):
        x = self.embedding(input_ids)
        for layer in self.layers:
            x = layer(x)
        return BaseModelOutput(x)
