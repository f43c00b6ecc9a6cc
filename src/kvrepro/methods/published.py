"""Files that the authors of methods publish, by the path that the workflow puts them at, with pinned checksums."""

from __future__ import annotations

#: DuoAttention's patterns: a line a layer, a column a KV head (mit-han-lab/duo-attention, MIT).
HEAD_PATTERNS = {
    "data/duo-attention/Llama-3.1-8B-Instruct.tsv": {
        "url": "https://raw.githubusercontent.com/mit-han-lab/duo-attention/fe93c314ae87306ef6629dc16713250b4718ffe7/"
        "attn_patterns/Meta-Llama-3.1-8B-Instruct/lr=0.02-reg=0.05-ctx=1000_128000-multi_passkey10/"
        "full_attention_heads.tsv",
        "sha256": "9e615b9aa11d7a2c21dfe3dfe51f1a282e10e69d9a48b83327ad5842049d5fcb",
    },
}
