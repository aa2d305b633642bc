"""Tiny models of transformers with random weights, for the tests of liblasp.torch.hf."""
import importlib
import sys

import torch

WORDS = 61
_COMMON = {"vocab_size": WORDS, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
           "num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "initializer_range": 0.2}
_MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_n_groups": 1, "mamba_d_state": 16, "mamba_d_conv": 4,
          "mamba_expand": 2, "mamba_chunk_size": 16}
_DELTA = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16,
          "linear_value_head_dim": 16, "linear_conv_kernel_dim": 4}
_BOTH = ["linear_attention", "full_attention"]
# By model: module, class, config class, what its config has.
MODELS = {
    "MiniMax": ("minimax", "MiniMaxForCausalLM", "MiniMaxConfig",
                {**_COMMON, "intermediate_size": 32, "num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 16,
                 "block_size": 8, "layer_types": _BOTH, "num_hidden_layers": 2}),
    "Mamba2": ("mamba2", "Mamba2ForCausalLM", "Mamba2Config",
               {"vocab_size": WORDS, "hidden_size": 32, "num_hidden_layers": 2, "num_heads": 4, "head_dim": 16,
                "state_size": 16, "n_groups": 2, "expand": 2, "chunk_size": 16, "initializer_range": 0.2,
                "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}),
    "Qwen3Next": ("qwen3_next", "Qwen3NextForCausalLM", "Qwen3NextConfig",
                  {**_COMMON, **_DELTA, "head_dim": 16, "layer_types": _BOTH, "num_experts": 4, "num_experts_per_tok": 2,
                   "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16, "intermediate_size": 32}),
    "Qwen3.5": ("qwen3_5", "Qwen3_5ForCausalLM", "Qwen3_5TextConfig",
                {**_COMMON, **_DELTA, "head_dim": 16, "layer_types": _BOTH, "intermediate_size": 32}),
    "Bamba": ("bamba", "BambaForCausalLM", "BambaConfig",
              {**_COMMON, **_MAMBA, "intermediate_size": 32, "attn_layer_indices": [1], "mamba_n_groups": 2}),
    "FalconH1": ("falcon_h1", "FalconH1ForCausalLM", "FalconH1Config",
                 {**_COMMON, **_MAMBA, "intermediate_size": 32, "mamba_d_ssm": 64}),
    "GraniteMoeHybrid": ("granitemoehybrid", "GraniteMoeHybridForCausalLM", "GraniteMoeHybridConfig",
                         {**_COMMON, **_MAMBA, "intermediate_size": 32, "layer_types": ["mamba", "attention"],
                          "num_local_experts": 4, "num_experts_per_tok": 2, "shared_intermediate_size": 32}),
    "NemotronH": ("nemotron_h", "NemotronHForCausalLM", "NemotronHConfig",
                  {**_COMMON, "intermediate_size": 32, "layers_block_type": ["mamba", "attention", "mamba", "moe"],
                   "mamba_num_heads": 4, "mamba_head_dim": 16, "ssm_state_size": 16, "n_groups": 2, "conv_kernel": 4,
                   "chunk_size": 16, "expand": 2, "head_dim": 8, "n_routed_experts": 4, "num_experts_per_tok": 2,
                   "moe_intermediate_size": 16, "moe_shared_expert_intermediate_size": 16}),
    "Zamba2": ("zamba2", "Zamba2ForCausalLM", "Zamba2Config",
               {**_COMMON, "intermediate_size": 32, "num_hidden_layers": 3, "layers_block_type": ["mamba", "hybrid", "mamba"],
                "mamba_d_state": 16, "mamba_ngroups": 1, "n_mamba_heads": 4, "mamba_headdim": 16, "mamba_expand": 2,
                "chunk_size": 16, "num_mem_blocks": 1, "use_mem_rope": True, "num_key_value_heads": 4}),
    "OlmoHybrid": ("olmo_hybrid", "OlmoHybridForCausalLM", "OlmoHybridConfig",
                   {**_COMMON, **_DELTA, "linear_num_key_heads": 4, "intermediate_size": 32, "layer_types": _BOTH}),
    "KimiLinear": ("kimi_linear", "KimiLinearForCausalLM", "KimiLinearConfig",
                   {**_COMMON, "intermediate_size": 32, "layer_types": _BOTH, "linear_num_heads": 4,
                    "linear_head_dim": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8,
                    "v_head_dim": 8, "num_key_value_heads": 4, "moe_intermediate_size": 16, "num_experts": 4,
                    "num_experts_per_token": 2, "num_local_experts": 4, "n_routed_experts": 4}),
}

# Those whose configuration can do without softmax layers, and how.
_LINEAR, _RECURRENT = {"layer_types": ["linear_attention"] * 2}, {"layer_types": ["mamba"] * 2}
WITHOUT_SOFTMAX = {"Mamba2": {}, "MiniMax": _LINEAR, "Qwen3Next": _LINEAR, "Qwen3.5": _LINEAR, "KimiLinear": _LINEAR,
                   "Bamba": {"attn_layer_indices": []}, "GraniteMoeHybrid": _RECURRENT,
                   "NemotronH": {"layers_block_type": ["mamba"] * 2}}

# All experts, so that no rounding chooses another one; no router is trained by a choice.
ALL_EXPERTS = {"MiniMax": {"num_experts_per_tok": 4}, "Qwen3Next": {"num_experts_per_tok": 4},
               "GraniteMoeHybrid": {"num_experts_per_tok": 4}, "NemotronH": {"num_experts_per_tok": 4},
               "KimiLinear": {"num_experts_per_token": 4, "num_experts_per_tok": 4}}


def make(name, dtype=torch.float32, **changes):
    """The model with the same random weights each time, in training mode."""
    module, model, config, settings = MODELS[name]
    if not torch.cuda.is_available():
        sys.modules.setdefault("fla", None)  # whose kernels transformers would take where it is installed
    package = importlib.import_module(f"transformers.models.{module}")
    torch.manual_seed(7)
    made = getattr(package, model)(getattr(package, config)(**{**settings, **changes}))
    return made.to(dtype).train()


def batch_of(rows=2, tokens=37, seed=3):
    ids = torch.randint(3, WORDS, (rows, tokens), generator=torch.Generator().manual_seed(seed))
    return {"input_ids": ids, "labels": ids.clone()}
