"""A TransNormerLLM-style language model (arXiv 2307.14995) over bytes: blocks of gated linear attention with a
constant decay per head, and a gated linear unit, each after a root-mean-square norm without weights. Its positions
come from the decay alone. It is an ordinary torch model; LinearAttention is the one module that knows of ranks."""
import torch
from torch import nn
from torch.nn import functional as F

from liblasp.torch import LinearAttention, alibi_slopes, checkpoint, linear_cross_entropy

VOCABULARY = 256


class GatedLinearUnit(nn.Module):
    def __init__(self, d_model, d_ff):
        super().__init__()
        self.up = nn.Linear(d_model, 2 * d_ff, bias=False)
        self.down = nn.Linear(d_ff, d_model, bias=False)

    def forward(self, x):
        value, gate = self.up(x).chunk(2, dim=-1)
        return self.down(value * gate)


class Block(nn.Module):
    def __init__(self, d_model, heads, d_ff, scale, group, plain=False):
        super().__init__()
        own = {"gate": False, "feature_map": None} if plain else {}
        self.attention = LinearAttention(d_model, heads, slopes=alibi_slopes(heads, scale), group=group, **own)
        self.mlp = GatedLinearUnit(d_model, d_ff)

    def forward(self, x):
        x = x + self.attention(F.rms_norm(x, x.shape[-1:]))
        return x + self.mlp(F.rms_norm(x, x.shape[-1:]))


class LanguageModel(nn.Module):
    """`group`: the sequence group, or None for whole sequences. `plain`: attention without gate and feature map."""

    def __init__(self, d_model=256, layers=4, heads=4, d_ff=512, group=None, checkpointing=False,
                 vocabulary=VOCABULARY, plain=False):
        super().__init__()
        self.checkpointing = checkpointing
        self.embedding = nn.Embedding(vocabulary, d_model)
        # Deeper blocks forget more slowly.
        self.blocks = nn.ModuleList(
            Block(d_model, heads, d_ff, 1.0 - 0.9 * layer / max(1, layers - 1), group, plain)
            for layer in range(layers))
        self.head = nn.Linear(d_model, vocabulary, bias=False)
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens, targets=None):
        """Logits [B, T, vocabulary], or with targets [B, T] the sum of their losses, for which no logits are kept."""
        x = self.embedding(tokens)
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        for block in self.blocks:
            x = checkpoint(block, x) if self.checkpointing else block(x)
        x = F.rms_norm(x, x.shape[-1:])
        if targets is None:
            return self.head(x)
        return linear_cross_entropy(x, self.head.weight, targets, reduction="sum")
