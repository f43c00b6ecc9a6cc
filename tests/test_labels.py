"""Rollouts, the closed form of the utility, its checks, and the files of labels."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch
from synthetic_labels import BASE
from transformers import DynamicCache

from kvrepro.errors import InputError
from kvrepro.labels import corpus as labels
from kvrepro.labels.corpus import LabelledCorpus, LabelSettings, label_corpus, label_document, label_documents
from kvrepro.labels.rollout import rollout
from kvrepro.labels.utility import ContinuationStates, utility
from kvrepro.models.attention import observing
from kvrepro.models.capture import decoder_layers, prefill
from kvrepro.models.loading import load
from kvrepro.models.sampling import sample

PAPER = LabelSettings.from_config(BASE["labels"]).sampling
FEW = LabelSettings.from_config(BASE["labels"] | {"rollouts": 3, "rollout_tokens": 6, "check_entries": 5, "batch": 2})


def brute_force(keys, values, rows, projection, scaling):
    """U of every entry by deleting its key from all query heads of its group, in float64, loop by loop."""
    kv_heads, n, d = values.shape
    group = rows.queries.shape[1] // kv_heads
    found = torch.zeros(len(rows.lengths), kv_heads, n, dtype=torch.float64)
    for m, length in enumerate(rows.lengths):
        for h in range(kv_heads):
            for t in range(length):
                k = torch.cat([keys[h], rows.keys[m, h, : t + 1]]).double()
                v = torch.cat([values[h], rows.values[m, h, : t + 1]]).double()
                for i in range(n):
                    keep = torch.arange(len(k)) != i
                    change = torch.zeros(projection.shape[0], dtype=torch.float64)
                    for j in range(h * group, (h + 1) * group):
                        logits = k @ rows.queries[m, j, t].double() * scaling
                        delta = logits.softmax(0) @ v - logits[keep].softmax(0) @ v[keep]
                        change += projection[:, j * d : (j + 1) * d].double() @ delta
                    found[m, h, i] = max(found[m, h, i], change.norm())
    return found


def random_case(sharp, seed=0, kv_heads=2, group=3, n=12, d=8, hidden=20, lengths=(5, 1, 3)):
    g = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=g)

    m, t = len(lengths), max(lengths)
    rows = ContinuationStates(
        normal(m, kv_heads * group, t, d), normal(m, kv_heads, t, d) * sharp, normal(m, kv_heads, t, d), lengths
    )
    return (
        normal(kv_heads, n, d) * sharp,
        normal(kv_heads, n, d) + 3,
        rows,
        normal(hidden, kv_heads * group * d),
        d**-0.5,
    )


@pytest.mark.parametrize("sharp", [0.3, 2.0, 20.0])
@pytest.mark.parametrize("group", [1, 3])
def test_closed_form_is_joint_key_deletion(sharp, group):
    case = random_case(sharp, group=group)
    expected = brute_force(*case)
    found = utility(*case)
    assert found.shape == expected.shape and found.dtype == torch.float32
    assert (found - expected).abs().max() <= 1.4e-5 * expected.max()


def test_chunks_change_nothing():
    case = random_case(2.0)
    torch.testing.assert_close(utility(*case, elements=1), utility(*case), rtol=1e-5, atol=1e-5)


def test_an_entry_that_takes_all_attention():
    """a rounds to 1 and a / (1 - a) overflows; the influence is still W (v_i - output of the rest)."""
    keys, values, rows, projection, scaling = random_case(1.0, kv_heads=1, group=2, lengths=(1,))
    rows.queries[:] = rows.queries[:, :1]
    rows.keys[:] = 0
    keys[0] *= 0
    keys[0, 4] = 1e4 * rows.queries[0, 0, 0]
    found = utility(keys, values, rows, projection, scaling)[0, 0]
    rest = torch.cat([values[0, :4], values[0, 5:], rows.values[0, 0]]).double().mean(0)
    expected = (projection.double() @ (values[0, 4].double() - rest).repeat(2)).norm()
    torch.testing.assert_close(found[4].double(), expected, rtol=1e-5, atol=0)
    assert torch.isfinite(found).all() and found[torch.arange(12) != 4].max() == 0


def test_sample_follows_top_k_and_top_p():
    logits = torch.log(torch.tensor([[0.1, 0.4, 0.05, 0.25, 0.2]]))
    draws = torch.tensor([0.0, 0.46, 0.48, 0.76, 0.78, 0.999999])
    many = logits.expand(len(draws), -1)
    # top-p 0.8 after top-k 4: of 0.4, 0.25, 0.2, 0.1 over 0.95, the first three reach 0.8; shares 0.47, 0.29, 0.24
    assert sample(many, draws, dataclasses.replace(PAPER, top_k=4, top_p=0.8)).tolist() == [1, 1, 3, 3, 4, 4]
    assert sample(many, draws, dataclasses.replace(PAPER, top_k=1)).tolist() == [1] * 6
    assert sample(many, draws, dataclasses.replace(PAPER, top_p=1e-9)).tolist() == [1] * 6
    assert sample(many, draws, dataclasses.replace(PAPER, temperature=1e-3)).tolist() == [1] * 6
    whole = dataclasses.replace(PAPER, top_p=1.0)
    assert sample(many[:1], torch.tensor([1.0]), whole).tolist() == [2]  # a draw that rounds to one


@pytest.fixture(scope="module")
def documents():
    g = torch.Generator().manual_seed(3)
    return [torch.randint(1, 320, (n,), generator=g) for n in (40, 61, 23)]


@pytest.fixture(scope="module")
def rolled(tiny_hybrid, documents):
    parents = [prefill(tiny_hybrid, d) for d in documents]
    return parents, rollout(tiny_hybrid, parents, FEW.sampling, [5, 6, 7], ["a", "b", "c"])


def test_rollout_records_what_a_whole_pass_computes(tiny_hybrid, documents, rolled):
    """Queries, keys, values of each continuation as one pass over context and continuation gives them."""
    g = tiny_hybrid.geometry
    for document, parent, found in zip(documents, *rolled, strict=True):
        for m, drawn in enumerate(found.tokens):
            queries, cache = {}, DynamicCache(config=tiny_hybrid.model.config)
            with torch.no_grad(), observing(lambda module, q, *_, seen=queries: seen.update({module.layer_idx: q[0]})):
                whole = torch.cat([document, torch.tensor(drawn)])
                tiny_hybrid.model(whole[None], past_key_values=cache, use_cache=True)
            for number, layer in enumerate(g.attention_layers):
                q, k, v = found.rows[number].sees(m)
                torch.testing.assert_close(q, queries[layer][:, parent.n :], rtol=0, atol=5e-3)
                torch.testing.assert_close(k, cache.layers[layer].keys[0, :, parent.n :], rtol=0, atol=5e-3)
                torch.testing.assert_close(v, cache.layers[layer].values[0, :, parent.n :], rtol=0, atol=5e-3)


def test_a_documents_rollout_does_not_depend_on_the_batch(tiny_hybrid, rolled):
    parents, together = rolled
    alone = rollout(tiny_hybrid, [parents[1]], FEW.sampling, [6], ["b"])[0]
    assert alone.tokens == together[1].tokens
    other = rollout(tiny_hybrid, [parents[1]], FEW.sampling, [60], ["b"])[0]
    assert alone.tokens != other.tokens


def test_top_1_is_greedy_decoding(tiny_hybrid, documents):
    parents = [prefill(tiny_hybrid, d) for d in documents]
    greedy = dataclasses.replace(PAPER, rollouts=2, rollout_tokens=5, top_k=1)
    found = rollout(tiny_hybrid, parents, greedy, [0] * 3, ["a"] * 3)
    for document, one in zip(documents, found, strict=True):
        greedy = tiny_hybrid.model.generate(
            document[None], max_new_tokens=5, do_sample=False, attention_mask=torch.ones(1, len(document))
        )[0, len(document) :].tolist()
        assert one.tokens[0] == one.tokens[1] == greedy


def test_a_row_stops_at_the_end_token(tiny_hybrid, rolled, monkeypatch):
    parents, found = rolled
    end = found[0].tokens[0][2]
    monkeypatch.setattr(tiny_hybrid.model.generation_config, "eos_token_id", end)
    again = rollout(tiny_hybrid, parents, FEW.sampling, [5, 6, 7], ["a", "b", "c"])[0]
    for row, whole, length in zip(again.tokens, found[0].tokens, again.rows[0].lengths, strict=True):
        stop = whole.index(end) + 1 if end in whole else len(whole)
        assert row == whole[:stop] and length == stop
    assert again.outputs[0].shape[0] == again.rows[0].lengths[0] == found[0].tokens[0].index(end) + 1


def test_labels_of_a_document(tiny_hybrid, documents):
    g = tiny_hybrid.geometry
    doc = label_document(tiny_hybrid, documents[0], FEW, seed=5)
    assert doc.n == 40
    assert doc.signals.shape == (len(g.gdn_layers), 40, g.gdn_heads, 3)
    assert doc.utility.shape == (len(g.attention_layers), g.kv_heads, 40)
    assert doc.checks["closed_form_error"] <= 1.4e-5 and doc.checks["module_error"] <= 1e-4
    assert doc.checks["covered"] == 1
    assert torch.equal(doc.targets().amax(-1), torch.ones(len(g.attention_layers), g.kv_heads))
    parent = prefill(tiny_hybrid, documents[0])
    found = rollout(tiny_hybrid, [parent], FEW.sampling, [5], ["a"])[0]
    for number, layer in enumerate(g.attention_layers):
        weight = decoder_layers(tiny_hybrid.model)[layer].self_attn.o_proj.weight
        expected = brute_force(
            parent.keys[number], parent.values[number], found.rows[number], weight, g.head_dim**-0.5
        ).amax(0)
        assert (doc.utility[number] - expected).abs().max() <= 1.4e-5 * expected.max()
        gates = parent.output_gates[number]  # §4.2: maximum over the group, mean over tokens and KV heads
        mean = sum(max(gates[h * 2 + j, i] for j in range(2)) for h in range(2) for i in range(40)) / 80
        torch.testing.assert_close(doc.layer_gates[number], mean)


def test_a_chat_template_is_prefilled_but_not_labelled(tiny_hybrid, documents):
    tokenizer = copy.deepcopy(tiny_hybrid.tokenizer)
    tokenizer.chat_template = "<user>{{ messages[0].content }}</user>{% if add_generation_prompt %}<model>{% endif %}"
    head, tail = (tokenizer.encode(text, add_special_tokens=False) for text in ("<user>", "</user><model>"))
    chat = dataclasses.replace(tiny_hybrid, tokenizer=tokenizer, chat=True)
    doc = label_documents(chat, documents[:1], FEW, [0], ["a"])[0]
    whole = prefill(tiny_hybrid, torch.cat([torch.tensor(head), documents[0], torch.tensor(tail)]))
    assert doc.n == 40
    torch.testing.assert_close(doc.signals, whole.signals[:, len(head) : len(head) + 40])
    rolled = rollout(tiny_hybrid, [whole], FEW.sampling, [0], ["a"])[0]
    weight = decoder_layers(tiny_hybrid.model)[3].self_attn.o_proj.weight
    expected = utility(whole.keys[0], whole.values[0], rolled.rows[0], weight, tiny_hybrid.geometry.head_dim**-0.5)
    torch.testing.assert_close(doc.utility[0], expected.amax(0)[:, len(head) : len(head) + 40])


def test_every_key_of_the_config_is_used():
    given = BASE["labels"] | {"check_entries": 9, "batch": 3, "seed": 7, "top_k": 2}
    found = LabelSettings.from_config(given)
    assert (found.check_entries, found.batch, found.seed, found.sampling.top_k) == (9, 3, 7, 2)
    known = {*vars(found), *vars(found.sampling)} - {"sampling"}
    assert set(BASE["labels"]) - known == {"corpora", "documents", "tokens"}


@pytest.mark.parametrize(
    ("fault", "named"),
    [
        (lambda u: u * 1.001, "closed_form_error"),
        (lambda u: u.index_fill(2, torch.tensor([3]), float("nan")), "covered"),
    ],
)
def test_a_wrong_utility_fails_the_check(tiny_hybrid, documents, monkeypatch, fault, named):
    monkeypatch.setattr(labels, "utility", lambda *args: fault(utility(*args)))
    with pytest.raises(InputError, match=rf"^report, document 4: label check failed.*{named}"):
        label_document(tiny_hybrid, documents[0], FEW, 0, "report, document 4")


def test_a_wrong_capture_fails_the_check(tiny_hybrid, documents, monkeypatch):
    def gates_missing(*args):
        return [dataclasses.replace(r, gates=[x * 0.99 for x in r.gates]) for r in rollout(*args)]

    monkeypatch.setattr(labels, "rollout", gates_missing)
    with pytest.raises(InputError, match="module_error"):
        label_document(tiny_hybrid, documents[0], FEW, 0)


def test_bad_input(tiny_hybrid, tiny_dense, documents, tmp_path):
    with pytest.raises(InputError, match="no Gated DeltaNet layers"):
        label_document(tiny_dense, documents[0], FEW, 0)
    with pytest.raises(InputError, match=r"^essay has 1020 tokens"):
        label_document(tiny_hybrid, torch.ones(1020, dtype=torch.long), FEW, 0, "essay")
    with pytest.raises(InputError, match="no documents"):
        label_corpus(tiny_hybrid, "c", [], FEW, tmp_path / "c.safetensors")
    for wrong in ({"top_p": 0.0}, {"temperature": 0.0}, {"rollouts": 0}):
        with pytest.raises(InputError, match="labels:"):
            dataclasses.replace(PAPER, **wrong)


def test_logits_that_are_not_finite_are_named(tiny_hybrid, documents):
    parents = [prefill(tiny_hybrid, d) for d in documents[:2]]
    parents[1].next_logits[3] = float("nan")
    with pytest.raises(InputError, match=r"^second: the model's logits are not finite"):
        rollout(tiny_hybrid, parents, FEW.sampling, [0, 1], ["first", "second"])


@pytest.fixture(scope="module")
def saved(tiny_hybrid, documents, tmp_path_factory):
    path = tmp_path_factory.mktemp("labels") / "prose.safetensors"
    label_corpus(tiny_hybrid, "prose", documents, FEW, path)
    return path


def test_a_corpus_comes_back_as_it_was_labelled(tiny_hybrid, documents, saved):
    corpus = LabelledCorpus(saved, tiny_hybrid.fingerprint, tiny_hybrid.geometry.as_dict())
    assert corpus.name == "prose" and [d.n for d in corpus] == [40, 61, 23]
    assert corpus.meta["settings"]["sampling"]["rollouts"] == 3
    again = label_document(tiny_hybrid, documents[1], FEW, corpus[1].seed)
    assert corpus[1].token_sha256 == again.token_sha256
    torch.testing.assert_close(corpus[1].utility, again.utility, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(corpus[1].signals, again.signals, rtol=1e-3, atol=1e-6)
    rows = labels.check_rows(corpus, "quick")
    assert len(rows) == 9 and {r["metric"] for r in rows} == {"closed_form_error", "module_error", "covered"}


def test_truncated_corrupt_and_foreign_files_are_refused(tiny_hybrid, saved, tmp_path):
    content = saved.read_bytes()
    bad = tmp_path / "bad.safetensors"
    for cut in (10, len(content) // 2, len(content) - 1):
        bad.write_bytes(content[:cut])
        with pytest.raises(InputError, match=r"bad\.safetensors is truncated.*delete it and run the workflow"):
            LabelledCorpus(bad)
    bad.write_bytes(content[:-50] + bytes([content[-50] ^ 1]) + content[-49:])
    with pytest.raises(InputError, match=r"bad\.safetensors is truncated or corrupt"):
        list(LabelledCorpus(bad))
    with pytest.raises(InputError, match=r"nothing\.safetensors is missing; run the workflow"):
        LabelledCorpus(tmp_path / "nothing.safetensors")
    with pytest.raises(InputError, match=r"prose\.safetensors was made for another model"):
        LabelledCorpus(saved, "0" * 16, tiny_hybrid.geometry.as_dict())


def test_labels_that_are_not_numbers_are_refused(tiny_hybrid, documents, tmp_path):
    doc = label_document(tiny_hybrid, documents[0], FEW, 0)
    doc.utility[0, 0, 3] = float("nan")
    labels.save(tmp_path / "c.safetensors", tiny_hybrid, "c", [doc], FEW)
    with pytest.raises(InputError, match=r"c\.safetensors holds values of document 0 that are not finite"):
        LabelledCorpus(tmp_path / "c.safetensors")[0]


def test_a_model_in_bfloat16_passes_its_checks(tiny_hybrid_dir, documents):
    doc = label_document(load(str(tiny_hybrid_dir), dtype=torch.bfloat16), documents[0], FEW, 0)
    assert doc.checks["closed_form_error"] <= 1.4e-5 and 1e-4 < doc.checks["module_error"] <= 2e-2
