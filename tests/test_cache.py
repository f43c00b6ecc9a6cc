"""Ragged caches, forks and admission against the plain model with masks."""

from __future__ import annotations

import pytest
import torch

from kvrepro.cache.admitted import Policy, admitted_cache
from kvrepro.cache.fork import fork
from kvrepro.cache.joined import join
from kvrepro.cache.ragged import EMPTY, bytes_held, pack
from kvrepro.cache.session import Session
from kvrepro.errors import InputError
from kvrepro.evaluate.decode import ask, decode, feed
from kvrepro.models import attention
from kvrepro.models.attention import grouped_attention
from kvrepro.models.capture import prefill
from kvrepro.models.gated_attention import keys_before_rope

QUESTION = [5, 9, 200, 31]


def answer(lm, cache, start, question, most, rows=1):
    """Answers on a cache of its own, without joining."""
    return decode(lm, cache, [ask(lm, cache, start, question, most, rows)])


def relative_error(got, want):
    return float((got - want).norm() / want.norm())


def everything(parent):
    return [torch.ones(parent.geometry.kv_heads, parent.n, dtype=torch.bool) for _ in parent.keys]


def some(parent, seed, share=0.4):
    """Uneven masks: every head keeps another number of entries; the first head of the first layer keeps one."""
    draw = torch.Generator().manual_seed(seed)
    masks = [torch.rand(m.shape, generator=draw) < share for m in everything(parent)]
    masks[0][0] = False
    masks[0][0, 3] = True
    return masks


def logits_with_masks(lm, tokens, masks):
    """Independent path: a full cache under transformers' eager attention, evicted entries hidden by an additive mask
    for the question's rows only. Returns the question's logits ``[t, vocab]``."""
    n, t = len(tokens), len(QUESTION)
    by_layer = dict(zip(lm.geometry.attention_layers, masks, strict=True))
    handles = []

    def hide(module, args, kwargs):
        causal = torch.full((1, lm.geometry.query_heads, t, n + t), 0.0)
        keep = by_layer[module.layer_idx].repeat_interleave(lm.geometry.group, 0)[None, :, None]
        causal[..., :n].masked_fill_(~keep, float("-inf"))
        late = torch.ones(t, t).triu(1).bool()
        causal[..., n:].masked_fill_(late, float("-inf"))
        kwargs["attention_mask"] = causal
        return args, kwargs

    parent = prefill(lm, tokens)
    lm.model.set_attn_implementation("eager")
    for i in lm.geometry.attention_layers:
        handles.append(lm.model.model.layers[i].self_attn.register_forward_pre_hook(hide, with_kwargs=True))
    try:
        with torch.no_grad():
            return lm.model(input_ids=torch.tensor([QUESTION]), past_key_values=parent.cache, use_cache=True).logits[0]
    finally:
        lm.model.set_attn_implementation("kvrepro")
        for handle in handles:
            handle.remove()


@pytest.mark.parametrize("which", ["tiny_hybrid", "tiny_dense"])
def test_a_compacted_child_equals_a_mask_over_the_full_cache(which, tokens, request):
    lm = request.getfixturevalue(which)
    parent = prefill(lm, tokens)
    plans = [some(parent, 1), everything(parent), some(parent, 2, 0.8)]
    children = fork(lm, parent, plans)
    positions = torch.arange(len(tokens), len(tokens) + len(QUESTION)).expand(3, -1)
    with torch.no_grad():
        got = lm.model(
            input_ids=torch.tensor([QUESTION] * 3),
            position_ids=positions,
            past_key_values=children.cache,
            use_cache=True,
        ).logits
    for row, masks in enumerate(plans):
        assert relative_error(got[row], logits_with_masks(lm, tokens, masks)) < 2e-5
    assert not torch.allclose(got[0], got[1], atol=1e-3), "compression must change the logits"


def test_evicted_entries_are_gone(tiny_hybrid, tokens):
    parent = prefill(tiny_hybrid, tokens)
    masks = some(parent, 3)
    child = fork(tiny_hybrid, parent, [masks])
    for number, mask in enumerate(masks):
        layer = child.attention[number]
        assert layer.keys.shape[2] == int(mask.sum(-1).max())
        for head in range(mask.shape[0]):
            kept = mask[head].nonzero()[:, 0]
            assert torch.equal(layer.positions[0, head, : len(kept)], kept)
            assert torch.equal(layer.keys[0, head, : len(kept)], parent.keys[number][head, kept])
            assert (layer.positions[0, head, len(kept) :] == EMPTY).all()
    assert int(bytes_held(child.attention)[0]) == sum(int(m.sum()) for m in masks) * 32 * 2 * 4


def test_forking_leaves_the_parent_alone_and_rewinding_repeats_the_answer(tiny_hybrid, tokens):
    parent = prefill(tiny_hybrid, tokens)
    before = [k.clone() for k in parent.keys]
    state = parent.cache.layers[0].recurrent_states[0].clone()
    children = fork(tiny_hybrid, parent, [some(parent, 4), everything(parent)])
    first = answer(tiny_hybrid, children.cache, parent.n, QUESTION, 70, rows=2)  # more than one growth of the slots
    children.rewind()
    assert answer(tiny_hybrid, children.cache, parent.n, QUESTION, 70, rows=2) == first
    children.rewind()
    other = answer(tiny_hybrid, children.cache, parent.n, QUESTION[::-1], 8, rows=2)
    fresh = fork(tiny_hybrid, parent, [some(parent, 4), everything(parent)])
    assert answer(tiny_hybrid, fresh.cache, parent.n, QUESTION[::-1], 8, rows=2) == other
    assert all(torch.equal(a, b) for a, b in zip(before, parent.keys, strict=True))
    assert torch.equal(state, parent.cache.layers[0].recurrent_states[0])


def test_positions_continue_after_the_context(tiny_dense, tokens):
    parent = prefill(tiny_dense, tokens)
    children = fork(tiny_dense, parent, [some(parent, 5)])
    answer(tiny_dense, children.cache, parent.n, QUESTION, 3)
    for layer in children.attention:
        new = layer.appended_positions()
        assert torch.equal(new, torch.arange(100, 100 + new.shape[-1]).expand_as(new))


def test_answers_end_at_eos(tiny_dense, tokens):
    parent = prefill(tiny_dense, tokens)
    free = answer(tiny_dense, fork(tiny_dense, parent, [everything(parent)]).cache, parent.n, QUESTION, 6)[0]
    assert free.finish_reason == "length" and len(free.tokens) == 6
    stop = free.tokens[2]
    eos = tiny_dense.model.generation_config.eos_token_id
    tiny_dense.model.generation_config.eos_token_id = [stop]
    try:
        ended = answer(tiny_dense, fork(tiny_dense, parent, [everything(parent)]).cache, parent.n, QUESTION, 6)[0]
    finally:
        tiny_dense.model.generation_config.eos_token_id = eos
    assert ended.finish_reason == "eos" and ended.tokens == free.tokens[: free.tokens.index(stop)]


def gate_some(layer, keys_pre_rope, keys, positions):
    """An arbitrary per-layer, per-head rule of positions and of keys before and after RoPE."""
    head = torch.arange(keys.shape[1])[:, None]
    by_position = (positions * 7 + head * 3 + layer) % 5 == 0
    return 0.7 * (by_position | ((keys_pre_rope[..., 0] > 0.5) & (keys[..., 1] > 0)))


def admitted_reference(lm, tokens, policy):
    """Logits of the whole sequence under the mask of WG-KV §4.2, written out over the uncompacted sequence, and who is
    admitted in each layer; keys before RoPE are those after it, turned back by the model's own angles."""
    n, admitted = len(tokens), []
    i, j = torch.arange(n)[:, None], torch.arange(n)
    cos, sin = lm.model.model.rotary_emb(torch.zeros(1, n, 1), torch.arange(n)[None])

    def run(module, query, key, value, attention_mask, scaling=None, **_):
        turned, rest = key[..., : cos.shape[-1]], key[..., cos.shape[-1] :]
        low, high = turned.chunk(2, -1)
        pre = torch.cat([turned * cos[:, None] - torch.cat([-high, low], -1) * sin[:, None], rest], -1)
        admitted.append(policy.gate(module.layer_idx, pre, key, torch.arange(n)) >= policy.threshold)
        mask = ((i - j < policy.window) | admitted[-1][:, :, None]) & (i >= j)
        visible = lambda rows, seen: mask[:, :, rows, :seen]  # noqa: E731
        return grouped_attention(query, key, value, visible, scaling).transpose(1, 2).contiguous(), None

    from transformers import AttentionInterface

    AttentionInterface.register("reference_admission", run)
    lm.model.set_attn_implementation("reference_admission")
    try:
        with torch.no_grad():
            return lm.model(input_ids=tokens[None]).logits[0], admitted
    finally:
        lm.model.set_attn_implementation("kvrepro")


@pytest.mark.parametrize("model", ["tiny_dense", "tiny_hybrid"])
@pytest.mark.parametrize("chunk", [32, 256])
def test_admission_before_the_write_equals_the_mask(model, tokens, chunk, monkeypatch, request):
    """Rows of one batch with a window each, on models with q/k-norm, full and partial RoPE."""
    lm = request.getfixturevalue(model)
    policies = [
        Policy(1, gate_some),
        Policy(16, gate_some, threshold=0.7),
        Policy(200, gate_some),
        Policy(16, gate_some, 0.8),
    ]
    references = [admitted_reference(lm, tokens, policy) for policy in policies]
    monkeypatch.setattr(attention, "CHUNK", chunk)  # a prefill longer than this takes the other path
    got = []
    with torch.no_grad(), keys_before_rope(lm, before := {}):
        cache = admitted_cache(lm, policies, before)
        for piece in (tokens[:60], tokens[60:97], tokens[97:98], tokens[98:99], tokens[99:]):  # prefill, chunk, decode
            got.append(
                lm.model(input_ids=piece.expand(len(policies), -1), past_key_values=cache, use_cache=True).logits
            )
    for row, (policy, (want, admitted)) in enumerate(zip(policies, references, strict=True)):
        assert relative_error(torch.cat(got, 1)[row], want) < 1e-4  # 2.6e-5 was seen: float32 states, other chunks
        for index, stays in zip(lm.geometry.attention_layers, admitted, strict=True):
            layer, now = cache.layers[index], torch.arange(100)
            assert torch.equal(torch.cat(layer.decisions, -1)[row], stays[0])
            for head, held in enumerate(layer.positions[row]):
                wanted = now[stays[0, head] | (now >= 100 - policy.window)]
                assert held[held != EMPTY].tolist() == wanted.tolist()


def test_an_admitted_session_repeats_its_answer(tiny_hybrid, tokens):
    with keys_before_rope(tiny_hybrid, before := {}):
        cache = admitted_cache(tiny_hybrid, [Policy(8, gate_some), Policy(30, gate_some)], before)
        feed(tiny_hybrid, cache, tokens, rows=2)
        session = Session(cache, tiny_hybrid.geometry)
        first = answer(tiny_hybrid, cache, 100, QUESTION, 20, rows=2)
        session.rewind()
        assert [layer.seen for layer in session.attention] == [100, 100]
        assert answer(tiny_hybrid, cache, 100, QUESTION, 20, rows=2) == first
        session.rewind()
        assert answer(tiny_hybrid, cache, 100, QUESTION[::-1], 20, rows=2) != first


@pytest.mark.parametrize("model", ["tiny_dense", "tiny_hybrid"])
def test_caches_of_different_contexts_answer_together_as_they_do_alone(model, tokens, request):
    """Forked and admitted rows, of contexts, questions and answers of different lengths."""
    lm = request.getfixturevalue(model)
    contexts, questions, most = [tokens, tokens[:70], tokens[20:]], [QUESTION, [7, 7], QUESTION[::-1]], [20, 12, 5]
    with keys_before_rope(lm, before := {}):
        parents = [prefill(lm, context) for context in contexts[:2]]
        sessions = [fork(lm, parent, [some(parent, 6), everything(parent)]) for parent in parents]
        policies = [Policy(8, gate_some), Policy(30, gate_some), Policy(8, gate_some, 0.71)]
        cache = admitted_cache(lm, policies, before)
        feed(lm, cache, contexts[2], rows=3)
        sessions.append(Session(cache, lm.geometry))
        cases = list(zip(sessions, (len(c) for c in contexts), questions, most, (2, 2, 3), strict=True))
        alone = []
        for session, *case in cases:
            alone += answer(lm, session.cache, *case)
            session.rewind()
        posed = [ask(lm, session.cache, *case) for session, *case in cases]
        joined = join(lm, [session.cache for session in sessions], 20, before)
        together = decode(lm, joined, posed)
    assert together == alone and len({given.tokens for given in alone}) > 3
    starts = [100, 100, 70, 70, 80, 80, 80]
    for given, start in zip(together, starts, strict=True):
        assert torch.equal(given.positions[0], torch.arange(start, start + given.positions.shape[1]))
    assert [given.positions.shape[1] for given in together] == [23, 23, 13, 13, 8, 8, 8]
    for layer in (joined.layers[i] for i in lm.geometry.attention_layers):
        assert layer.keys.data_ptr() == layer._keys.data_ptr() and layer.used == layer._keys.shape[2]


def test_pack_keeps_order_and_empties_the_rest():
    keys = torch.arange(2 * 2 * 5 * 3, dtype=torch.float32).view(2, 2, 5, 3)
    kept = torch.tensor([[[0, 1, 0, 1, 1], [0, 0, 0, 0, 0]], [[1, 0, 0, 0, 0], [0, 0, 1, 1, 0]]]).bool()
    k, _, positions = pack(keys, keys, torch.arange(5).expand(2, 2, 5), kept)
    assert positions.tolist() == [[[1, 3, 4], [-1, -1, -1]], [[0, -1, -1], [2, 3, -1]]]
    assert torch.equal(k[0, 0], keys[0, 0, [1, 3, 4]]) and (k[0, 1] == 0).all()


def test_impossible_contexts_are_refused(tiny_dense):
    with pytest.raises(InputError, match="empty"):
        prefill(tiny_dense, torch.zeros(0, dtype=torch.long))
    with pytest.raises(InputError, match="protected prefix 10"):
        prefill(tiny_dense, torch.ones(10, dtype=torch.long), protected=10)
    with pytest.raises(InputError, match="takes 1024"):
        prefill(tiny_dense, torch.ones(1025, dtype=torch.long))
