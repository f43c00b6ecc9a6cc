"""The training forward on the parameters of ``Qwen3_5ForCausalLM`` and ``Qwen3ForCausalLM``.

Stock transformers runs the Gated DeltaNet's torch fallback at 74K tokens/s on one NVIDIA H200; this forward runs at
about 550K. Every function that is compiled sees flattened tensors ``[tokens, ...]`` of a fixed number of tokens, so one
compilation serves every row length. Matrix products run in ``dtype`` (bf16 on a GPU), the residual stream and the delta
rule in float32. Equality with the stock forward and its gradients is tested in ``tests/test_lab_training.py``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from kvrepro.training.lab.scan import ChunkScan, TriangularInverse

CHUNK = 64  # tokens a chunk of the delta rule; row lengths are multiples of it
CONV = 4  # taps of the short convolution
EPS = 1e-6


def _linear(x, weight, dtype):
    return F.linear(x.to(dtype), weight.to(dtype))


def _rms(x, weight, offset):
    """RMS norm in float32; Qwen3.5 stores its weights around zero (``offset`` 1), Qwen3 around one (``offset`` 0)."""
    y = x.float()
    return y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + EPS) * (offset + weight)


def _mlp(x, norm, gate, up, down, offset, dtype):
    h = _rms(x, norm, offset).to(dtype)
    return x + _linear(F.silu(_linear(h, gate, dtype)) * _linear(h, up, dtype), down, dtype).float()


def _l2(x):
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + EPS)


def delta_in(x, norm, w_qkv, w_z, w_beta, w_a, conv, a_log, dt_bias, taps, key_heads, heads, dim, dtype):
    """Projections, short convolution and everything within a chunk that needs no other chunk.

    ``x`` [N, hidden] -> tensors [N / 64 * heads, 64, .]: decayed queries, the strictly lower ``A`` whose inverse is
    needed, decayed q k^T, beta v, decayed beta k, keys decayed to the chunk's end; the chunk's whole decay; and ``z``.
    ``taps`` [N, 3] masks the convolution at the start of a row.
    """
    n = x.shape[0]
    h = _rms(x, norm, 1).to(dtype)
    y = _linear(h, w_qkv, dtype).float()
    z = _linear(h, w_z, dtype)
    out = y * conv[:, 0, CONV - 1]
    for j in range(1, CONV):
        out = out + torch.roll(y, j, 0) * taps[:, j - 1 : j] * conv[:, 0, CONV - 1 - j]
    width = key_heads * dim
    q, k, v = F.silu(out).split([width, width, out.shape[-1] - 2 * width], -1)
    q = _l2(q.view(n, key_heads, dim)) * dim**-0.5
    k = _l2(k.view(n, key_heads, dim))
    beta = _linear(h, w_beta, dtype).float().sigmoid()
    g = -a_log.exp() * F.softplus(_linear(h, w_a, dtype).float() + dt_bias)

    def spread(t):  # each key head serves heads / key_heads consecutive value heads
        return t.unsqueeze(2).expand(n, key_heads, heads // key_heads, dim).reshape(n, heads, dim)

    def chunks(t):
        return t.view(n // CHUNK, CHUNK, heads, -1).transpose(1, 2).reshape(n // CHUNK * heads, CHUNK, -1)

    q, k, v, beta = chunks(spread(q)), chunks(spread(k)), chunks(v), chunks(beta)
    cum = chunks(g)[..., 0].cumsum(-1)
    lower = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=x.device).tril()
    decay = (cum.unsqueeze(-1) - cum.unsqueeze(-2)).masked_fill(~lower, float("-inf")).exp()
    kt, kb, e = k.transpose(-1, -2), k * beta, cum.exp().unsqueeze(-1)
    to_end = (cum[:, -1:] - cum).exp().unsqueeze(-1)
    return q * e, ((kb @ kt) * decay).tril(-1), (q @ kt) * decay, v * beta, kb * e, k * to_end, cum[:, -1].exp(), z


def delta_chunks(inverse, vb, kbe, k_end, last):
    """U, W and the chunk's state update ``S' = M S + N``."""
    u, w = inverse @ vb, inverse @ kbe
    kt = k_end.transpose(-1, -2)
    m = last[:, None, None] * torch.eye(k_end.shape[-1], device=last.device) - kt @ w
    return u, w, m, kt @ u


def delta_out(state, u, w, qe, qk, z, x, norm, w_out, mlp_norm, gate, up, down, heads, dtype):
    """Outputs of all chunks from the states before them, gated norm, output projection, residual, MLP."""
    o = qe @ state + qk @ (u - w @ state)
    n, dim = x.shape[0], o.shape[-1]
    o = o.view(n // CHUNK, heads, CHUNK, dim).transpose(1, 2).reshape(n, heads, dim)
    o = o * torch.rsqrt(o.pow(2).mean(-1, keepdim=True) + EPS) * norm * F.silu(z.float().view(n, heads, dim))
    return _mlp(x + _linear(o.reshape(n, -1), w_out, dtype).float(), mlp_norm, gate, up, down, 1, dtype)


def attention_in(x, norm, wq, wk, wv, q_norm, k_norm, cos, sin, head_dim, group, gated, dtype):
    """Normed, rotated queries and keys, values (KV heads repeated to query heads) [N, heads, head_dim]; output gate."""
    n, offset = x.shape[0], int(gated)
    h = _rms(x, norm, offset).to(dtype)
    q = _linear(h, wq, dtype)
    gate = q
    if gated:  # each query head's projection holds query and gate side by side
        q, gate = q.view(n, -1, 2 * head_dim).chunk(2, -1)
        gate = gate.reshape(n, -1)
    q = q.reshape(n, -1, head_dim)
    k, v = _linear(h, wk, dtype).view(n, -1, head_dim), _linear(h, wv, dtype).view(n, -1, head_dim)
    rotary = cos.shape[-1]
    cos, sin = cos[:, None], sin[:, None]

    def rotate(t):
        a, b = t[..., :rotary], t[..., rotary:]
        half = torch.cat([-a[..., rotary // 2 :], a[..., : rotary // 2]], -1)
        return torch.cat([a * cos + half * sin, b], -1).to(dtype)

    def spread(t):
        kv = t.shape[1]
        return t.unsqueeze(2).expand(n, kv, group, head_dim).reshape(n, kv * group, head_dim)

    return rotate(_rms(q, q_norm, offset)), spread(rotate(_rms(k, k_norm, offset))), spread(v), gate


def attention_out(o, gate, x, wo, mlp_norm, w_gate, up, down, gated, dtype):
    """Output gate (Qwen3.5), output projection, residual, MLP."""
    if gated:
        o = o * torch.sigmoid(gate)
    return _mlp(x + _linear(o, wo, dtype).float(), mlp_norm, w_gate, up, down, int(gated), dtype)


def losses(x, norm, embedding, targets, answer, text, offset, dtype):
    """Mean cross-entropy on answer tokens and on text tokens, and the share of answer tokens predicted right."""
    logits = _linear(_rms(x, norm, offset), embedding, dtype).float()
    ce = F.cross_entropy(logits, targets, reduction="none")
    n = answer.sum().clamp(min=1)
    hit = ((logits.argmax(-1) == targets) * answer).sum() / n
    return (ce * answer).sum() / n, (ce * text).sum() / text.sum().clamp(min=1), hit


def predicted(x, norm, embedding, offset, dtype):
    """Greedy next token of every position [N]."""
    return _linear(_rms(x, norm, offset), embedding, dtype).float().argmax(-1)


def token_nll(x, norm, embedding, targets, offset, dtype):
    """Negative log-likelihood of every target [N], nats."""
    return F.cross_entropy(_linear(_rms(x, norm, offset), embedding, dtype).float(), targets, reduction="none")


PARTS = (delta_in, delta_chunks, delta_out, attention_in, attention_out, losses, predicted, token_nll)


@dataclass(frozen=True)
class _Positions:
    cos: torch.Tensor
    sin: torch.Tensor
    taps: torch.Tensor


class FastForward:
    """The forward of one model; ``model`` keeps its parameters, nothing is copied.

    ``compiled`` wraps each part in ``torch.compile`` (static shapes): use a single number of tokens then, whatever the
    row length. Row lengths must be multiples of 64.
    """

    def __init__(self, model, dtype: torch.dtype, compiled: bool = False):
        self.model, self.dtype = model, dtype
        self.config = model.config
        self.hybrid = any(hasattr(layer, "linear_attn") for layer in model.model.layers)
        self._positions: dict[tuple[int, int], _Positions] = {}
        self.parts = {part.__name__: part for part in PARTS}
        if compiled:
            import torch._dynamo

            torch._dynamo.config.recompile_limit = 64
            self.parts = {name: torch.compile(part, dynamic=False) for name, part in self.parts.items()}

    def positions(self, rows: int, length: int, device) -> _Positions:
        """Rotary cos and sin [rows * length, rotary] and the convolution's start-of-row masks, made once a shape."""
        if (rows, length) not in self._positions:
            rope = self.config.rope_parameters
            rotary = int(self.config.head_dim * rope.get("partial_rotary_factor", 1.0))
            p = torch.arange(length, device=device).float()
            frequency = rope["rope_theta"] ** (torch.arange(0, rotary, 2, device=device).float() / rotary)
            angle = p[:, None] / frequency
            angle = torch.cat([angle, angle], -1).repeat(rows, 1)
            taps = torch.stack([(p >= j).float() for j in range(1, CONV)], 1).repeat(rows, 1)
            self._positions[rows, length] = _Positions(angle.cos(), angle.sin(), taps)
        return self._positions[rows, length]

    def _delta_layer(self, layer, x, mlp, pos, rows, length):
        c, a = self.config, layer.linear_attn
        heads, dim, key_heads = c.linear_num_value_heads, c.linear_key_head_dim, c.linear_num_key_heads
        n = length // CHUNK
        qe, lower, qk, vb, kbe, k_end, last, z = self.parts["delta_in"](
            x,
            layer.input_layernorm.weight,
            a.in_proj_qkv.weight,
            a.in_proj_z.weight,
            a.in_proj_b.weight,
            a.in_proj_a.weight,
            a.conv1d.weight,
            a.A_log,
            a.dt_bias,
            pos.taps,
            key_heads,
            heads,
            dim,
            self.dtype,
        )
        u, w, m, update = self.parts["delta_chunks"](TriangularInverse.apply(lower), vb, kbe, k_end, last)

        def by_chunk(t):  # [rows * chunks * heads, ...] -> [chunks, rows * heads, ...]
            return t.view(rows, n, heads, *t.shape[1:]).transpose(0, 1).reshape(n, rows * heads, *t.shape[1:])

        state = ChunkScan.apply(by_chunk(m), by_chunk(update))
        state = state.view(n, rows, heads, *state.shape[2:]).transpose(0, 1).reshape(rows * n * heads, *state.shape[2:])
        return self.parts["delta_out"](
            state, u, w, qe, qk, z, x, a.norm.weight, a.out_proj.weight, *mlp, heads, self.dtype
        )

    def _attention_layer(self, layer, x, mlp, pos, rows, length):
        c, a = self.config, layer.self_attn
        q, k, v, gate = self.parts["attention_in"](
            x,
            layer.input_layernorm.weight,
            a.q_proj.weight,
            a.k_proj.weight,
            a.v_proj.weight,
            a.q_norm.weight,
            a.k_norm.weight,
            pos.cos,
            pos.sin,
            c.head_dim,
            c.num_attention_heads // c.num_key_value_heads,
            self.hybrid,
            self.dtype,
        )
        q, k, v = (t.view(rows, length, -1, c.head_dim).transpose(1, 2) for t in (q, k, v))
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        o = o.transpose(1, 2).reshape(rows * length, -1)
        return self.parts["attention_out"](o, gate, x, a.o_proj.weight, *mlp, self.hybrid, self.dtype)

    def hidden(self, ids: torch.Tensor) -> torch.Tensor:
        """Last hidden states before the final norm, ``[rows * length, hidden]`` float32, of ``ids`` [rows, length]."""
        rows, length = ids.shape
        pos = self.positions(rows, length, ids.device)
        x = F.embedding(ids.reshape(-1), self.model.model.embed_tokens.weight).float()
        for layer in self.model.model.layers:
            m = layer.mlp
            mlp = (
                layer.post_attention_layernorm.weight,
                m.gate_proj.weight,
                m.up_proj.weight,
                m.down_proj.weight,
            )
            run = self._delta_layer if hasattr(layer, "linear_attn") else self._attention_layer
            x = run(layer, x, mlp, pos, rows, length)
        return x

    def _head(self, name: str, x: torch.Tensor, *args):
        inner = self.model.model
        return self.parts[name](x, inner.norm.weight, inner.embed_tokens.weight, *args, int(self.hybrid), self.dtype)

    def loss(self, ids, targets, answer, text):
        """(answer loss, text loss, answer accuracy) of a batch; all arguments [rows, length]."""
        return self._head("losses", self.hidden(ids), targets.reshape(-1), answer.reshape(-1), text.reshape(-1))

    def predict(self, ids: torch.Tensor) -> torch.Tensor:
        """Greedy next token at every position, [rows, length]."""
        return self._head("predicted", self.hidden(ids)).view(ids.shape)

    def nll(self, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Negative log-likelihood of each target, [rows, length] in nats."""
        return self._head("token_nll", self.hidden(ids), targets.reshape(-1)).view(ids.shape)

    def logits(self, ids: torch.Tensor) -> torch.Tensor:
        """Logits ``[rows, length, vocab]`` float32 (not compiled: for checks)."""
        inner = self.model.model
        x = _rms(self.hidden(ids), inner.norm.weight, int(self.hybrid))
        return _linear(x, inner.embed_tokens.weight, self.dtype).float().view(*ids.shape, -1)
