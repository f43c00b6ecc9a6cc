"""KVzip: its attention against an eager forward over context and repetition, its parts, and an untouched prefill."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from transformers import AutoModelForCausalLM

from kvrepro.errors import InputError
from kvrepro.methods import eviction
from kvrepro.methods.eviction.kvzip import attention_received
from kvrepro.models.capture import prefill
from kvrepro.models.chat import around_user_turn

PROTECTED, CHUNK = 7, 40
PARTS = [(7, 47), (47, 87), (87, 100)]


def repetitions(lm, tokens):
    """What must be fed, put together from the published prompts."""
    first, later = (
        lm.tokenizer.encode(text, add_special_tokens=False)
        for text in (
            "\n\nRepeat the previous context exactly.",
            "\n\nRepeat the part of the previous context exactly, starting with ",
        )
    )
    ids = tokens.tolist()
    fed = [first + ids[7:47], later + ids[39:47] + ids[47:87], later + ids[79:87] + ids[87:100]]
    return [torch.tensor(x) for x in fed]


@pytest.fixture(params=["tiny_hybrid", "tiny_dense", "tiny_sparse"])
def both(request):
    """A model as the suite runs it, and the same weights with transformers' eager attention."""
    directory = request.getfixturevalue(f"{request.param}_dir")
    eager = AutoModelForCausalLM.from_pretrained(directory, attn_implementation="eager").eval()
    return request.getfixturevalue(request.param), eager


@pytest.mark.parametrize("softmax_over", ["cache", "chunk"])
def test_scores_against_one_eager_pass_over_context_and_repetition(softmax_over, both, tokens):
    """The eager pass has no cache at all: it reads the context and a repetition as one text."""
    lm, eager = both
    g, n = lm.geometry, len(tokens)
    method = eviction.build("kvzip", {"chunk": CHUNK, "softmax_over": softmax_over})
    method.prepare(lm)
    got = method.score(prefill(lm, tokens, PROTECTED))
    for (start, stop), fed in zip(PARTS, repetitions(lm, tokens), strict=True):
        with torch.no_grad():
            out = eager(torch.cat([tokens, fed])[None], output_attentions=True)
        attentions = [a for a in out.attentions if a is not None]
        for scores, weights in zip(got, attentions, strict=True):
            rows = weights[0, :, n:].double()  # [query_heads, fed, n + fed]
            if softmax_over == "chunk":
                rows = rows[..., [*range(PROTECTED), *range(start, stop), *range(n, n + len(fed))]]
                rows = (rows / rows.sum(-1, keepdim=True)).nan_to_num()  # of a sparse attention some read none of it
                part = rows[..., PROTECTED : PROTECTED + stop - start]
            else:
                part = rows[..., start:stop]
            want = part.unflatten(0, (g.kv_heads, g.group)).amax((1, 2))
            torch.testing.assert_close(scores[:, start:stop].double(), want, atol=2e-5, rtol=1e-3)
    assert all((scores[:, :PROTECTED] == 0).all() and scores.max() <= 1 for scores in got)


@pytest.mark.parametrize("elements", [1, 200, 10**6])
def test_attention_received_does_not_depend_on_its_blocks(elements):
    draw = torch.Generator().manual_seed(0)
    q, k = torch.randn(4, 9, 8, generator=draw), torch.randn(2, 29, 8, generator=draw)
    got = attention_received(q, k, slice(3, 15), 0.3, elements)
    for head in range(2):
        best = torch.zeros(12, dtype=torch.float64)
        for j in range(2):
            for i in range(9):
                seen = 20 + i + 1
                logits = [0.3 * float(q[2 * head + j, i].double() @ k[head, e].double()) for e in range(seen)]
                total = sum(math.exp(x) for x in logits)
                best = torch.maximum(best, torch.tensor([math.exp(x) / total for x in logits[3:15]]).double())
        torch.testing.assert_close(got[head].double(), best, atol=1e-6, rtol=1e-5)


def test_the_prefill_is_not_changed_and_parts_start_from_it(tiny_hybrid, tokens):
    parent = prefill(tiny_hybrid, tokens, PROTECTED)
    before = copy.deepcopy(parent.cache)
    method = eviction.build("kvzip", {"chunk": CHUNK})
    method.prepare(tiny_hybrid)
    whole = method.score(parent)
    assert parent.cache.get_seq_length() == len(tokens)
    for old, new in zip(before.layers, parent.cache.layers, strict=True):
        for name, value in vars(old).items():
            for a, b in [(value, vars(new)[name])] if torch.is_tensor(value) else []:
                assert torch.equal(a, b), name
            for key in value if isinstance(value, dict) else ():
                if torch.is_tensor(value[key]):
                    assert torch.equal(value[key], vars(new)[name][key]), name
    again = method.score(parent)
    assert all(torch.equal(a, b) for a, b in zip(whole, again, strict=True))


def test_a_chat_model_closes_the_turn_before_it_repeats(tiny_dense, tokens):
    lm = copy.copy(tiny_dense)
    lm.tokenizer = copy.deepcopy(tiny_dense.tokenizer)
    lm.tokenizer.chat_template = "{% for m in messages %}<u>{{ m.content }}</u>{% endfor %}<a>"
    lm.chat = True
    assert around_user_turn(lm.tokenizer) == ("<u>", "</u><a>")
    method = eviction.build("kvzip", {"chunk": 200})
    method.prepare(lm)
    (part, fed), *rest = method._parts(tokens, PROTECTED, 1024)
    assert not rest and part == slice(7, 100) and torch.equal(fed[-93:], tokens[7:])
    assert lm.tokenizer.decode(fed[:-93]) == "\n\nRepeat the previous context exactly.</u><a>"


def test_bad_input_is_one_sentence(tiny_dense):
    with pytest.raises(InputError, match="chunk must be at least 1"):
        eviction.build("kvzip", {"chunk": 0})
    with pytest.raises(InputError, match="softmax_over is 'all'"):
        eviction.build("kvzip", {"softmax_over": "all"})
    method = eviction.build("kvzip")
    method.prepare(tiny_dense)
    long = torch.randint(1, 320, (1020,), generator=torch.Generator().manual_seed(0))
    with pytest.raises(InputError, match=r"after 1020 tokens the 1024 positions .* leave no room"):
        method.score(prefill(tiny_dense, long))
    parts = list(method._parts(long[:600], 0, 1024))  # 2,000 at a time do not fit
    assert len(parts) == 2 and max(600 + len(fed) for _, fed in parts) <= 1024
    assert [i for part, _ in parts for i in range(part.start, part.stop)] == list(range(600))
