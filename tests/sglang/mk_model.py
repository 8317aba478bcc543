# SPDX-License-Identifier: Apache-2.0
"""Writes a tiny random Llama and its tokenizer: enough for a real Engine, without a model hub.

    mk_model.py FOLDER [--layers N] [--kv-heads N] [--seed N]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

VOCABULARY = 1024
HIDDEN = 256
HEADS = 4
HEAD_SIZE = 64
INTERMEDIATE = 512
BOS, EOS, PAD = 1, 2, 0


def kv_bytes_per_token(layers: int = 4, kv_heads: int = 4) -> int:
    """Bytes of K and V of one token, in bfloat16."""
    return 2 * layers * kv_heads * HEAD_SIZE * 2


def make_model(folder: Path, layers: int = 4, kv_heads: int = 4, seed: int = 0) -> Path:
    """Write the model into `folder`, which is made; equal arguments make equal weights."""
    folder.mkdir(parents=True, exist_ok=True)
    _write_json(folder / "config.json", {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "num_hidden_layers": layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": kv_heads,
        "head_dim": HEAD_SIZE,
        "intermediate_size": INTERMEDIATE,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 8192,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "pad_token_id": PAD,
        "attention_bias": False,
        "mlp_bias": False,
    })
    _write_json(folder / "generation_config.json",
                {"bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": PAD})
    _write_tokenizer(folder)
    _write_weights(folder / "model.safetensors", layers, kv_heads, seed)
    return folder


def _write_json(path: Path, value: dict) -> None:
    path.write_text(json.dumps(value, indent=1), encoding="utf-8")


def _write_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {"<pad>": PAD, "<s>": BOS, "</s>": EOS, "<unk>": 3}
    words |= {f"w{number}": number for number in range(4, VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    _write_json(folder / "tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "pad_token": "<pad>",
        "model_max_length": 8192,
    })


def _write_weights(path: Path, layers: int, kv_heads: int, seed: int) -> None:
    import torch
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> torch.Tensor:
        return (torch.randn(*shape, generator=generator) / shape[-1] ** 0.5).to(torch.bfloat16)

    def ones() -> torch.Tensor:
        return torch.ones(HIDDEN, dtype=torch.bfloat16)

    # Embeddings that are large against the rest: what comes out depends on what went in.
    weights = {"model.embed_tokens.weight": random(VOCABULARY, HIDDEN) * 16,
               "lm_head.weight": random(VOCABULARY, HIDDEN), "model.norm.weight": ones()}
    for number in range(layers):
        layer = f"model.layers.{number}."
        weights |= {
            layer + "self_attn.q_proj.weight": random(HEADS * HEAD_SIZE, HIDDEN),
            layer + "self_attn.k_proj.weight": random(kv_heads * HEAD_SIZE, HIDDEN),
            layer + "self_attn.v_proj.weight": random(kv_heads * HEAD_SIZE, HIDDEN),
            layer + "self_attn.o_proj.weight": random(HIDDEN, HEADS * HEAD_SIZE),
            layer + "mlp.gate_proj.weight": random(INTERMEDIATE, HIDDEN),
            layer + "mlp.up_proj.weight": random(INTERMEDIATE, HIDDEN),
            layer + "mlp.down_proj.weight": random(HIDDEN, INTERMEDIATE),
            layer + "input_layernorm.weight": ones(),
            layer + "post_attention_layernorm.weight": ones(),
        }
    save_file(weights, str(path), metadata={"format": "pt"})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write a tiny random model.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--kv-heads", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    make_model(asked.folder, asked.layers, asked.kv_heads, asked.seed)
