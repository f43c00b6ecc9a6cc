"""What tokens receive and heads admit, compared with transformers' own attention, with hand-made cases and with the
cache of an evaluation; and Figures 3 and 13."""

from __future__ import annotations

import pytest
import torch
from synthetic_admission import HEAD_SIZES, pattern_rows

from kvrepro.analysis import patterns
from kvrepro.analysis.head_sizes import head_size_rows, head_sizes
from kvrepro.analysis.token_utility import Received, contrast, crosswise, received, token_utility_rows, traces
from kvrepro.cache.admitted import admitted_cache
from kvrepro.cache.ragged import entries_held
from kvrepro.errors import InputError
from kvrepro.evaluate.decode import feed
from kvrepro.figures.patterns import figure_3, figure_13
from kvrepro.methods.admission.write_gate import WriteGate
from kvrepro.models.attention import NAME
from kvrepro.models.gate import WriteGates, initial
from kvrepro.models.gated_attention import keys_before_rope
from kvrepro.results import SCHEMA

WINDOW = 8


@pytest.fixture(params=["tiny_dense", "tiny_hybrid"])
def lm(request):
    return request.getfixturevalue(request.param)


@torch.no_grad()
def attention_maps(lm, tokens):
    """Attention weights by transformers, ``[layers * query_heads, n, n]``."""
    lm.model.set_attn_implementation("eager")
    try:
        maps = lm.model(input_ids=tokens[None], output_attentions=True).attentions
    finally:
        lm.model.set_attn_implementation(NAME)
    return torch.cat([each[0] for each in maps if each is not None and each.ndim == 4])


def test_what_is_received_near_and_far_is_that_of_the_attention_maps(lm, tokens, monkeypatch):
    monkeypatch.setattr("kvrepro.analysis.token_utility.ROWS", 32)
    maps, found = attention_maps(lm, tokens), received(lm, tokens, WINDOW)
    n, heads = len(tokens), len(lm.geometry.attention_layers) * lm.geometry.query_heads
    assert found.far.shape == (heads, n - 2 * WINDOW + 1)
    for head in (0, heads - 1):
        for token in (0, 40, n - 2 * WINDOW):
            column = maps[head, :, token]
            assert found.near[head, token] == pytest.approx(column[token + 1 : token + WINDOW].mean().item(), rel=1e-4)
            assert found.far[head, token] == pytest.approx(column[token + WINDOW :].mean().item(), rel=1e-4)
            assert found.total[head, token] == pytest.approx(column[token + WINDOW :].sum().item(), rel=1e-4)
    line = traces(lm, tokens, [heads - 1, 1], [3, 50])
    assert torch.allclose(line[0, 1], maps[heads - 1, :, 50], atol=1e-6)
    assert torch.allclose(line[1, 0], maps[1, :, 3], atol=1e-6)
    with pytest.raises(InputError, match="too short to tell near from distant"):
        received(lm, tokens[: 3 * WINDOW // 2], WINDOW)


def test_heads_that_disagree_are_found():
    far = torch.full((3, 20), 0.1)
    far[:, 10:] = 0.2  # the half that heads do not ignore, unless said otherwise
    far[0, 3], far[1, 3] = 0.9, 0.01
    far[1, 4], far[0, 4] = 0.8, 0.01
    far[1, 12] = 0.7
    found = Received(far, far, far)
    counts = crosswise(found)
    assert torch.equal(counts, counts.T) and counts.diagonal().sum() == 0 and counts[0, 1] > 0
    assert contrast(found, 20) in (([0, 1], [3, 4]), ([1, 0], [4, 3]))
    with pytest.raises(InputError, match="no two heads"):
        contrast(Received(*[torch.arange(20.0).expand(3, 20)] * 3), 20)


def test_rows_of_attention(tiny_dense, tokens):
    rows = SCHEMA.validate(token_utility_rows(tiny_dense, [tokens, tokens.flip(0)], WINDOW, "stdlib", "quick"))
    utility = patterns.of(rows, patterns.UTILITY)
    heads = len(tiny_dense.geometry.attention_layers) * tiny_dense.geometry.query_heads
    assert utility.groupby("metric").size().to_dict() == {
        "top_tenth_share": 2 * heads,
        "near_of_ignored": 2 * heads,
        "far_of_ignored": 2 * heads,
        "crosswise_pairs": 2,
    }
    seen = received(tiny_dense, tokens, WINDOW)
    total = seen.total[0].sort(descending=True).values
    first = utility[(utility["metric"] == "top_tenth_share") & (utility["item"] == 0)].iloc[0]
    assert first["value"] == pytest.approx((total[:8].sum() / total.sum()).item())  # of 85 tokens
    lines = patterns.traces(rows)
    assert len(lines) == 4 and len({(line.layer, line.head) for line in lines}) == 2
    assert all(line.queries[0] == line.token + 1 for line in lines)


@pytest.mark.parametrize("threshold", [0.48, 0.52])
def test_sizes_of_heads_are_those_of_an_admitted_cache(tiny_dense, tokens, threshold):
    lm = tiny_dense
    gates = WriteGates(initial(lm.geometry, 8), lm.geometry, lm.fingerprint, lm.name, WINDOW, 0.08)
    method = WriteGate(threshold=threshold)
    method._gates = gates
    store: dict = {}
    with keys_before_rope(lm, store):
        cache = admitted_cache(lm, [method.policy(None, len(tokens))], store)
        feed(lm, cache, tokens)
    held = entries_held([cache.layers[i] for i in lm.geometry.attention_layers])[0] / len(tokens)
    found = head_sizes(lm, gates, tokens, threshold)
    assert torch.allclose(found, held) and found.min() < 1
    longer = torch.cat([tokens, tokens[:9]])
    rows = SCHEMA.validate(head_size_rows(lm, gates, {"code": [tokens], "vt": [longer]}, threshold, "quick"))
    sizes = patterns.sizes(rows)
    assert list(sizes) == ["code", "vt"]  # of one length, since the window is a part of what is held
    assert all(size.value == pytest.approx(found.numpy()) for size in sizes.values())


def test_figure_3_shows_two_heads_and_two_tokens():
    figure = figure_3(pattern_rows(), lab=True)
    left, right = figure.axes
    assert [axes.get_title() for axes in figure.axes] == ["layer 1, query head 0", "layer 1, query head 3"]
    for axes, head in ((left, 0), (right, 3)):
        for line, token in zip(axes.get_lines(), (5, 9), strict=True):
            assert line.get_label() == f"token {token}" and line.get_xdata()[0] == token + 1
            assert line.get_ydata()[0] == pytest.approx(1 / ((token + 1) * (1 + head) * token))
    assert "not published" in figure.texts[-1].get_text().replace("\n", " ")


def test_figure_13_is_a_heat_map_a_kind():
    figure = figure_13(pattern_rows())
    for axes, (kind, sizes) in zip(figure.axes, HEAD_SIZES.items(), strict=False):
        assert axes.get_title().startswith(f"{kind}: mean ")
        assert axes.get_images()[0].get_array().data == pytest.approx(torch.tensor(sizes).numpy(), rel=1e-5)
    assert figure.axes[0].get_title() == "code: mean 0.70, CV 0.20"
