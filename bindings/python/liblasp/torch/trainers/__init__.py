"""Trainers that bring a loop of their own, over split sequences: one module for each, which needs its package.

    from liblasp.torch.trainers.transformers import SequenceParallelMixin    # the Trainer of transformers
    from liblasp.torch.trainers.accelerate import over_sequences             # a loop with an Accelerator
    from liblasp.torch.trainers.lightning import SequenceParallelStrategy    # PyTorch Lightning
    from liblasp.torch.trainers.megatron import over_sequences               # gated delta nets of Megatron-Core
    from liblasp.torch.trainers.torchtitan import over_sequences             # Qwen3.5 of torchtitan
"""
