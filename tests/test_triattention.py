"""TriAttention and its query statistics, against loops over dimensions, positions and offsets in double precision."""

from __future__ import annotations

import cmath
import math

import pytest
import torch

from kvrepro.errors import InputError
from kvrepro.labels.query_statistics import calibrate, rotary_frequencies
from kvrepro.methods import eviction, query_statistics
from kvrepro.models.capture import decoder_layers, prefill

OFFSETS = [2**i for i in range(17)]


def normed(lm, tokens, which):
    """Outputs of the q- or k-norm modules, which are what RoPE turns: per attention layer [tokens, heads, head_dim]."""
    seen, handles, layers = {}, [], decoder_layers(lm.model)
    for i in lm.geometry.attention_layers:

        def hook(_, __, out, i=i):
            seen[i] = out[0].double()

        handles.append(getattr(layers[i].self_attn, which).register_forward_hook(hook))
    with torch.no_grad():
        lm.model(input_ids=tokens[None], use_cache=False)
    for handle in handles:
        handle.remove()
    return [seen[i] for i in lm.geometry.attention_layers]


def pairs(g):
    """(dimension of the real part, of the imaginary part) of every band."""
    half, rest = g.rotary_dim // 2, (g.head_dim - g.rotary_dim) // 2
    return [(d, d + half) for d in range(half)] + [(g.rotary_dim + d, g.rotary_dim + d + rest) for d in range(rest)]


@pytest.fixture(params=["tiny_hybrid", "tiny_dense", "tiny_sparse"])
def lm(request):
    return request.getfixturevalue(request.param)


@pytest.fixture
def documents():
    draw = torch.Generator().manual_seed(11)
    return [torch.randint(1, 320, (size,), generator=draw) for size in (60, 50, 70)]


def test_models_differ_in_what_they_rotate(tiny_hybrid, tiny_dense):
    assert tiny_hybrid.geometry.rotary_dim == 8 and tiny_dense.geometry.rotary_dim == 32
    found = rotary_frequencies(tiny_hybrid)
    assert found.shape == (16,) and (found[:4] > 0).all() and (found[4:] == 0).all()
    assert (rotary_frequencies(tiny_dense) > 0).all()


def test_statistics_by_hand(lm, documents):
    got = calibrate(lm, documents, tokens=130)  # 60 + 50 + the first 20 of the last
    used = [documents[0], documents[1], documents[2][:20]]
    queries = [torch.cat(parts) for parts in zip(*(normed(lm, d, "q_norm") for d in used), strict=True)]
    for number, q in enumerate(queries):
        for head in range(lm.geometry.query_heads):
            for band, (a, b) in enumerate(pairs(lm.geometry)):
                z = [complex(x, y) for x, y in zip(q[:, head, a].tolist(), q[:, head, b].tolist(), strict=True)]
                assert len(z) == 130
                assert got.mean[number, head, band].item() == pytest.approx(sum(z) / 130, abs=1e-5)
                assert got.magnitude[number, head, band] == pytest.approx(sum(map(abs, z)) / 130, abs=1e-5)


def test_scores_by_hand(lm, documents, tokens, tmp_path):
    """The published formula on keys before RoPE: amplitude, phase and distance for every offset."""
    path, g, n = tmp_path / "statistics.safetensors", lm.geometry, len(tokens)
    statistics = calibrate(lm, documents, 100)
    statistics.save(path, lm, 100)
    method = eviction.build("triattention", artifact_paths={"query_statistics": str(path)})
    method.prepare(lm)
    got = method.score(prefill(lm, tokens, 7))
    omega = lm.model.model.rotary_emb.inv_freq.tolist() + [0.0] * ((g.head_dim - g.rotary_dim) // 2)
    for number, keys in enumerate(normed(lm, tokens, "k_norm")):
        for head in range(g.kv_heads):
            for p in (0, 1, 42, 99):
                best = -math.inf
                for query_head in range(head * g.group, (head + 1) * g.group):
                    total = 0.0
                    for band, (a, b) in enumerate(pairs(g)):
                        k = complex(keys[p, head, a], keys[p, head, b])
                        q = statistics.mean[number, query_head, band].item()
                        phase = cmath.phase(q * k.conjugate())
                        far = [math.cos(omega[band] * (n - p + delta) + phase) for delta in OFFSETS]
                        total += abs(q) * abs(k) * sum(far) / len(far)
                        total += (statistics.magnitude[number, query_head, band].item() - abs(q)) * abs(k)
                    best = max(best, total)
                assert got[number][head, p] == pytest.approx(best, abs=2e-3, rel=1e-4)


def test_statistics_of_another_model_are_refused(tiny_dense, tiny_hybrid, documents, tmp_path):
    path = tmp_path / "statistics.safetensors"
    calibrate(tiny_dense, documents, 50).save(path, tiny_dense, 50)
    assert query_statistics.load(path, tiny_dense).mean.shape == (3, 4, 16)
    method = eviction.build("triattention", artifact_paths={"query_statistics": str(path)})
    with pytest.raises(InputError, match="made for another model"):
        method.prepare(tiny_hybrid)
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(InputError, match="truncated or corrupt"):
        method.prepare(tiny_dense)


def test_bad_input_is_one_sentence(tiny_dense, documents):
    with pytest.raises(InputError, match="is missing; run the workflow"):
        eviction.build("triattention", artifact_paths={"query_statistics": "nowhere.safetensors"}).prepare(tiny_dense)
    with pytest.raises(InputError, match="offsets must be at least 1"):
        eviction.build("triattention", {"offsets": 0}, artifact_paths={"query_statistics": "x"})
    with pytest.raises(InputError, match="hold 180 tokens, not 200; give more text"):
        calibrate(tiny_dense, documents, 200)
    with pytest.raises(InputError, match="tokens must be at least 1"):
        calibrate(tiny_dense, documents, 0)
    with pytest.raises(InputError, match="a document has 1100 tokens"):
        calibrate(tiny_dense, [torch.ones(1100, dtype=torch.long)], 1100)
