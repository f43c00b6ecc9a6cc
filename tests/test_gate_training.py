"""Training of write gates and head profiles: the objective by hand, rows, resuming, files, and what it must refuse."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import yaml

from kvrepro.benchmarks.ruler.draws import split_of
from kvrepro.data import sources
from kvrepro.errors import InputError
from kvrepro.methods import head_profile
from kvrepro.methods.head_profile import HeadProfile
from kvrepro.methods.published import HEAD_PATTERNS
from kvrepro.models.capture import decoder, decoder_layers
from kvrepro.models.gate import WriteGates, initial, load_gates
from kvrepro.models.gated_attention import Gating, gated
from kvrepro.profiling import bench_gate_training as bench
from kvrepro.training.gates import heads, validation
from kvrepro.training.gates.loss import sparsity_loss, step
from kvrepro.training.gates.recipe import FORMS, GateRecipe, HeadRecipe
from kvrepro.training.gates.rows import Rows, read_source
from kvrepro.training.gates.train import Run, sweep, train

PROVENANCE = {"commit": "none", "hardware": "a test"}


@pytest.fixture
def corpus(tmp_path):
    """A corpus of the user's: 40 documents of numbered lines."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    lines = [f'{{"text": "Document {i} begins.\\n' + f"The grass of {i} is green.\\n" * 150 + '"}' for i in range(40)]
    (folder / "a.jsonl").write_text("\n".join(line.replace("\n", "\\n") for line in lines))
    return {"name": "mine", "folder": str(folder)}


@pytest.fixture
def recipe(corpus):
    settings = {
        "window": 8, "expansion": 0.5, "steps": 12, "lengths": {48: 0.75, 64: 0.25}, "batch_tokens": 96,
        "sources": [{"kind": "text", "corpora": [corpus], "prompt": "Read:\n"}], "learning_rate": 0.02,
        "validation": 2, "thresholds": [0.1, 0.6], "log_every": 4,
    }  # fmt: skip
    return lambda **changed: GateRecipe.from_settings(settings | changed)


def untrained(lm, recipe) -> WriteGates:
    layers = initial(lm.geometry, recipe.hidden(lm.geometry.head_dim))
    return WriteGates(layers, lm.geometry, lm.fingerprint, lm.name, recipe.window, 0.3)


def test_the_objective_by_hand(tiny_dense, recipe, tokens):
    r, lm, ids = recipe(), tiny_dense, tokens[None, :60]
    gates = untrained(lm, r)
    found = step(lm, [gates], r, ids)
    gating = Gating([gates], 8)
    with torch.no_grad():
        target = decoder(lm.model)(ids, use_cache=False).last_hidden_state
        with gated(lm, gating):
            hidden = decoder(lm.model)(ids, use_cache=False).last_hidden_state
    assert found.distillation.item() == pytest.approx(((hidden - target) ** 2).mean().item(), rel=1e-5)
    values = torch.stack(list(gating.seen.values())).flatten().tolist()
    assert len(values) == 3 * 2 * 60
    assert found.sparsity.item() == pytest.approx(sum(g + g * (1 - g) for g in values) / len(values), rel=1e-5)
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in gates.layers.parameters())
    assert all(p.grad is None for p in lm.model.parameters()), "the backbone is frozen"


def test_the_gradient_is_that_of_the_loss(tiny_dense, recipe, tokens):
    """One weight by central differences."""
    r, lm, ids = recipe(), tiny_dense, tokens[None, :60]
    gates = untrained(lm, r)
    step(lm, [gates], r, ids)
    weight, size, around = gates.layers[1].b2, 0.05, []
    for sign in (1, -1):
        moved = untrained(lm, r)
        with torch.no_grad():
            moved.layers[1].b2[0] += sign * size
        losses = step(lm, [moved], r, ids)
        around.append((losses.distillation + 0.3 * losses.sparsity).item())
    assert weight.grad[0].item() == pytest.approx((around[0] - around[1]) / (2 * size), rel=0.02)


def test_published_form_weighs_gates_by_their_reach():
    gates, window, n = torch.rand(1, 2, 10, dtype=torch.float64), 3, 10
    total = 0.0
    for h, t in itertools.product(range(2), range(n)):
        g, inside = gates[0, h, t].item(), min(window / (n - t), 1)
        total += inside + (1 - inside) * (2 * g - g * g)
    assert sparsity_loss([gates], "reach", window).item() == pytest.approx(total / 20)


def test_activations_computed_again_change_no_gradient(tiny_dense, recipe, tokens):
    found, calls = [], []
    handle = decoder_layers(tiny_dense.model)[0].self_attn.q_proj.register_forward_hook(lambda *_: calls.append(1))
    for again in (False, True):
        r = recipe(checkpoint_activations=again)
        gates = untrained(tiny_dense, r)
        calls.clear()
        step(tiny_dense, [gates], r, tokens[None, :60])
        found.append([p.grad for p in gates.layers.parameters()])
        assert len(calls) == (3 if again else 2)
    handle.remove()
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    assert not any(layer.training for layer in decoder_layers(tiny_dense.model))


def test_rates_and_lengths_follow_appendix_c(recipe):
    r = recipe(steps=200, learning_rate=0.001, warmup=0.1)
    rates = [r.rate(i) for i in range(200)]
    assert rates[0] == pytest.approx(0.001 / 20) and rates[19] == rates[20] == pytest.approx(0.001)
    assert rates[110] == pytest.approx(0.0005) and rates[-1] < 1e-6 and rates[20:] == sorted(rates[20:], reverse=True)
    assert Counter(r.schedule().tolist()) == {48: 150, 64: 50}
    assert (np.diff(r.schedule()) != 0).sum() > 20, "mixed"


def test_rows_are_full_repeat_and_differ_by_split(tiny_dense, recipe):
    r = recipe()
    a, b, held = (Rows(r, tiny_dense.tokenizer, False, split) for split in ("train", "train", "heldout"))
    prompt = tiny_dense.tokenizer.encode("Read:\n", add_special_tokens=False)
    for number in range(r.steps):
        batch = a[number]
        assert batch.shape == (96 // r.schedule()[number], r.schedule()[number]) and batch.dtype == np.int32
        assert (batch == b[number]).all() and (batch[:, : len(prompt)] == prompt).all()
    assert a.row(0, 0, 48) != held.row(0, 0, 48)
    texts = {name: set(source.sources[0].corpora[0]) for name, source in (("train", a), ("heldout", held))}
    assert texts["train"] and not texts["train"] & texts["heldout"]


def test_traces_begin_where_a_document_begins(tiny_dense, corpus):
    source = read_source({"kind": "traces", "corpora": [corpus]}, tiny_dense.tokenizer, False, "train")
    for seed in range(5):
        ids = source.row(np.random.default_rng(seed), 3000)
        text = tiny_dense.tokenizer.decode(ids)
        assert text.startswith("Document") and len(ids) == 3000
        assert text.count("begins.") == text.count("<|endoftext|>") + 1 > 1


def test_rows_of_the_formats_end_with_question_and_answer(tiny_dense):
    entry = {"kind": "ruler", "prose": "lexicon", "word_count": 200, "list_word_tokens": 0, "tasks": ["niah_single_1"]}
    source = read_source(entry, tiny_dense.tokenizer, False, "train")
    ids = source.row(np.random.default_rng(0), 900)
    text = tiny_dense.tokenizer.decode(ids)
    question = text.split("<|endoftext|>")[0]
    number = question.rsplit(" ", 1)[1]
    assert len(ids) == 900 and number.isdigit() and question.count(number) == 2, "the answer is in the context"


def test_rows_of_programs_hold_the_whole_trace(tiny_dense):
    entry = {"kind": "registers", "registers": 4, "prose": "lexicon"}
    source, held_out = (read_source(entry, tiny_dense.tokenizer, False, split) for split in ("train", "heldout"))
    ids = source.row(np.random.default_rng(0), 900)
    program, *filler = tiny_dense.tokenizer.decode(ids).split("<|endoftext|>")
    rounds = int(re.search(r"Run (\d+) rounds", program).group(1))
    digits = re.findall(r"= \w{3} (\d)", program)
    assert len(ids) == 900 and filler and f"round {rounds}:" in program and len(digits) == 4 * rounds
    assert program.splitlines()[-1].startswith("Registers: ")
    names = re.findall(r"\b[A-Z]{3}\b", program)
    assert {split_of(name) for name in names} == {"train"}
    assert held_out.row(np.random.default_rng(0), 900) != ids


def test_a_sweep_trains_writes_and_resumes(tiny_dense, recipe, tmp_path):
    r, said = recipe(steps=30), []
    assert sweep(tiny_dense, r, [0.0, 3.0], tmp_path / "whole", "none", PROVENANCE, say=said.append)
    sizes = {}
    for name in ("0", "3"):
        folder = tmp_path / "whole" / name
        gates = load_gates(folder / "gates.safetensors", tiny_dense)
        sizes[name] = gates.training["held_out"]["0.1"]["cache"]
        curve = pd.read_csv(folder / "loss.csv")
        assert gates.window == 8 and gates.trade_off == float(name) and curve["step"].iloc[-1] == 30
        rows = pd.read_parquet(folder / "validation.parquet")
        took = rows[rows["experiment"] == "training_cost"].set_index("metric")["value"]
        assert took["tokens"] == curve["tokens"].iloc[-1] and took["seconds"] == curve["seconds"].iloc[-1]
        rows = rows[rows["experiment"] != "training_cost"]
        assert len(rows) == 2 * 2 * 2 * 2 and rows["budget"].between(0, 1).all()
        assert set(rows["metric"]) == {"distillation_loss", "decided_gates"}
        assert f"λ = {name}" in (folder / "README.md").read_text()
    both = tmp_path / "whole" / "gates.safetensors"
    again = load_gates(both, tiny_dense, 3.0).layers.state_dict()
    assert all(torch.equal(x, again[name]) for name, x in gates.layers.state_dict().items())
    assert len(pd.read_parquet(tmp_path / "whole" / "validation.parquet")) == 2 * (16 + 2)
    with pytest.raises(InputError, match=r"several lambdas; choose one of 0, 3\."):
        load_gates(both, tiny_dense)
    with pytest.raises(InputError, match=r"no gates of lambda 0\.5; choose one of 0, 3"):
        load_gates(both, tiny_dense, 0.5)
    assert sweep(tiny_dense, r, [3.0, 0.0], tmp_path / "whole", "none", PROVENANCE, say=pytest.fail), "nothing to do"
    with pytest.raises(InputError, match="holds gates of another recipe"):
        sweep(tiny_dense, recipe(steps=31), [3.0], tmp_path / "whole", "none", PROVENANCE)
    assert curve["sparsity"].iloc[-1] < curve["sparsity"].iloc[0], "the loss on gates falls"
    assert sizes["3"] < sizes["0"], "a larger lambda holds less"
    assert any("step 4/30" in line for line in said)

    assert not sweep(tiny_dense, r, [3.0], tmp_path / "parts", "none", PROVENANCE, max_seconds=0.0, say=said.append)
    run = Run(tiny_dense, r, [3.0], tmp_path / "parts" / "3")
    rows = Rows(r, tiny_dense.tokenizer, False)
    batches = rows.batches(0, 0)
    for _ in range(11):
        run.train_step(next(batches))
    run.save()
    assert sweep(tiny_dense, r, [3.0], tmp_path / "parts", "none", PROVENANCE, say=said.append)
    whole, parts = (load_gates(tmp_path / p / "3" / "gates.safetensors", tiny_dense) for p in ("whole", "parts"))
    for a, b in zip(whole.layers.state_dict().values(), parts.layers.state_dict().values(), strict=True):
        assert torch.equal(a, b), "a run that was killed ends as one that was not"


def test_lambdas_train_together_as_they_do_alone(tiny_dense, recipe, tmp_path):
    lambdas = [0.1, 1.0, 3.0]
    for together in (1, 2):
        r = recipe(steps=6, together=together)
        assert sweep(tiny_dense, r, lambdas, tmp_path / str(together), "none", PROVENANCE, say=lambda text: None)
    alone, pairs = (tmp_path / name / "gates.safetensors" for name in "12")
    assert {path.name for path in (tmp_path / "2").iterdir() if path.is_dir()} == {"0.1_1", "3"}
    start = initial(tiny_dense.geometry, recipe().hidden(tiny_dense.geometry.head_dim)).state_dict()
    for trade_off in lambdas:
        a, b = (load_gates(path, tiny_dense, trade_off).layers.state_dict() for path in (alone, pairs))
        for name, x in a.items():
            assert not torch.equal(x, start[name])
            torch.testing.assert_close(b[name], x, rtol=1e-3, atol=1e-4)
    curve = pd.read_csv(tmp_path / "2" / "0.1_1" / "loss.csv")
    assert curve["lambda"].tolist() == [0.1, 1.0] * 2 and curve["step"].tolist() == [4, 4, 6, 6]
    assert curve["gate"].iloc[-1] < curve["gate"].iloc[-2], "a larger lambda closes gates faster"
    card = (tmp_path / "2" / "0.1_1" / "README.md").read_text()
    assert "λ = 0.1\n" in card and "λ = 1\n" in card and "together with 1 other λ" in card
    costs = pd.read_parquet(tmp_path / "2" / "validation.parquet").query("experiment == 'training_cost'")
    assert [json.loads(options)["together"] for options in costs["options"]] == [2] * 4 + [1] * 2


def test_gradients_of_lambdas_that_train_together_are_their_own(tiny_dense, recipe, tokens):
    r, ids = recipe(), tokens[:100].view(2, 50)
    alone = [replace(untrained(tiny_dense, r), trade_off=trade_off) for trade_off in (0.0, 2.0)]
    together = [replace(untrained(tiny_dense, r), trade_off=trade_off) for trade_off in (0.0, 2.0)]
    found = step(tiny_dense, together, r, ids)
    for number, gates in enumerate(alone):
        one = step(tiny_dense, [gates], r, ids)
        for name in ("distillation", "sparsity", "gate"):
            torch.testing.assert_close(getattr(found, name)[number], getattr(one, name)[0])
        pairs = zip(gates.layers.parameters(), together[number].layers.parameters(), strict=True)
        for p, q in pairs:
            torch.testing.assert_close(q.grad, p.grad, rtol=1e-4, atol=1e-6)


def test_a_checkpoint_of_another_run_is_refused(tiny_dense, recipe, tmp_path):
    Run(tiny_dense, recipe(), [0.1], tmp_path).save()
    with pytest.raises(InputError, match="of another model, recipe or lambda"):
        Run(tiny_dense, recipe(), [0.2], tmp_path)
    state = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    torch.save(state | {"gates": state["gates"][0]}, tmp_path / "checkpoint.pt")  # as it was when each had its own
    with pytest.raises(InputError, match="of another model, recipe or lambda"):
        Run(tiny_dense, recipe(), [0.1], tmp_path)
    (tmp_path / "checkpoint.pt").write_bytes(b"cut")
    with pytest.raises(InputError, match="cannot be read"):
        Run(tiny_dense, recipe(), [0.1], tmp_path)
    with pytest.raises(InputError, match="would reward a full cache"):
        Run(tiny_dense, recipe(), [-1.0], tmp_path)


def test_a_loss_that_is_not_finite_stops_the_run(tiny_dense, recipe, tmp_path):
    run = Run(tiny_dense, recipe(), [0.1], tmp_path)
    with torch.no_grad():
        run.sweep[0].layers[0].b2.fill_(math.nan)
    with pytest.raises(InputError, match=r"step \d+, lambda 0\.1: the loss is not finite"):
        train(run, Rows(run.recipe, tiny_dense.tokenizer, False).batches(0, 0), say=lambda text: None)
    assert not run.checkpoint.exists()


def test_cache_share_by_hand():
    admitted = torch.tensor([True, False, True, False, True, True])
    assert validation.cache_share(admitted, 2).item() == pytest.approx((2 + 2) / 6)
    assert validation.cache_share(admitted, 10).item() == 1.0


def test_held_out_loss_falls_to_zero_when_all_is_admitted(tiny_dense, recipe):
    r = recipe(thresholds=[0.0])
    rows = validation.held_out(r, tiny_dense.tokenizer, False)
    for m in validation.measure(tiny_dense, untrained(tiny_dense, r), r, rows):
        assert m["cache"] == 1.0 and m["loss"] < 1e-8


def test_gates_have_decided_when_they_are_close_to_zero_or_one(tiny_dense, recipe):
    r = recipe(thresholds=[0.1], validation=1)
    rows, gates = validation.held_out(r, tiny_dense.tokenizer, False), untrained(tiny_dense, r)
    found = []
    for bias in (-9.0, 0.0, 9.0):  # of the logit, which swamps the rest
        with torch.no_grad():
            for layer in gates.layers:
                layer.w2.zero_()
                layer.b2.fill_(bias)
        found.append({m["decided"] for m in validation.measure(tiny_dense, gates, r, rows)})
    assert found == [{1.0}, {0.0}, {1.0}]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"window": 64}, "less than the longest row"),
        ({"thresholds": [1.5]}, r"must lie in \[0, 1\]"),
        ({"lenghts": {}}, "did you mean 'lengths'"),
        ({"lengths": {}}, "map row lengths"),
        ({"sparsity": "papers"}, "did you mean 'paper'"),
        ({"warmup": 1.0}, "no share of the steps"),
        ({"steps": 0}, "must be at least 1"),
        ({"learning_rate": 0}, "must be above 0"),
    ],
)
def test_bad_recipes_are_one_sentence(recipe, changed, message):
    with pytest.raises(InputError, match=message):
        recipe(**changed)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"kind": "txt"}, "did you mean 'text'"),
        ({"kind": "text", "corpora": []}, "name at least one"),
        ({"kind": "text", "corpora": ["kjv"], "split": 1}, "kind 'text'"),
        ({"kind": "ruler", "prose": "kjv", "word_count": 200, "list_word_tokens": 0, "tasks": ["v"]}, "RULER task"),
    ],
)
def test_bad_sources_are_one_sentence(tiny_dense, source, message):
    with pytest.raises(InputError, match=message):
        read_source(source, tiny_dense.tokenizer, False, "train")


@pytest.mark.parametrize("path", sorted(Path("config/write_gates").glob("*.yaml")), ids=lambda p: p.stem)
def test_shipped_recipes_are_sound(path):
    recipe, lambdas = GateRecipe.read(path)
    assert lambdas == [0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28]
    if "head_profile" in yaml.safe_load(path.read_text()):
        found = HeadRecipe.read(path)
        assert found.sinks * 2 == found.window == recipe.window, "as in Appendix E"
        assert found.pull == (0.04 if found.form == "wg_kv" else 0.05)
        assert found.pattern is None or found.pattern in HEAD_PATTERNS
    for entry in recipe.sources:
        for name in entry.get("corpora", ()):
            sources.source(name)


HEADS = HeadRecipe(sinks=2, window=6, steps=6, lengths=(150, 160), passkeys=2, words=2, corpora=("lexicon",))


def test_mixing_is_full_or_streaming_attention(tiny_dense, tokens):
    mixing = heads.Mixing(tiny_dense, HEADS)
    with torch.no_grad():
        plain = decoder(tiny_dense.model)(tokens[None], use_cache=False).last_hidden_state
        with gated(tiny_dense, mixing):
            full = decoder(tiny_dense.model)(tokens[None], use_cache=False).last_hidden_state
        mixing.raw.zero_()
        age = torch.arange(100)[:, None] - torch.arange(100)
        mask = (age >= 0) & ((age < 6) | (torch.arange(100) < 2))
        with gated(tiny_dense, mixing):
            streaming = decoder(tiny_dense.model)(tokens[None], use_cache=False).last_hidden_state
        expected = decoder(tiny_dense.model)(
            tokens[None], attention_mask=mask[None, None], use_cache=False
        ).last_hidden_state
    torch.testing.assert_close(full, plain, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(streaming, expected, atol=1e-4, rtol=1e-4)


def test_passkeys_are_repeated_at_the_end(tiny_dense):
    source = heads.passkey_source(tiny_dense, HEADS)
    ids, counted = source(3)
    text = tiny_dense.tokenizer.decode(ids[0])
    for number in (1, 2):
        first, second = text.split(f"Passkey {number}:")[1:]
        key = second.split("\n")[0]
        assert first.startswith(key) and len(key.split()) == 2
    assert counted.shape == ids.shape and 150 <= ids.shape[1] <= 165
    answers = tiny_dense.tokenizer.decode(ids[0, 1:][counted[0, :-1]])
    assert answers == "".join(text.split(f"Passkey {n}:")[2].split("\n")[0] for n in (1, 2))
    with pytest.raises(InputError, match="lengthen rows"):
        heads.passkey_source(tiny_dense, replace(HEADS, lengths=(10, 10)))(0)


@pytest.mark.parametrize("form", FORMS)
def test_heads_are_identified_saved_and_loaded(form, tiny_dense, recipe, tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe().as_dict() | {"lambdas": [1], "head_profile": {"sinks": 2, "window": 6}}))
    over = {"form": form, "steps": 6, "learning_rate": 0.2, "pull": 10.0, "lengths": [150, 160], "passkeys": 2}
    over |= {"words": 2, "corpora": ["lexicon"]}
    gates = GateRecipe.read(path, {"lengths": {32: 1}})[0]
    profile = heads.identify_from(tiny_dense, HeadRecipe.read(path, over), gates, say=lambda text: None)
    assert (
        profile.gates.shape == (3, 2) and 0 <= profile.gates.min() <= profile.gates.max() < (0.5, 0.95)[form == "duo"]
    )
    profile.save(tmp_path / "heads.safetensors", tiny_dense)
    again = head_profile.load(tmp_path / "heads.safetensors", tiny_dense)
    assert torch.equal(again.gates, profile.gates) and again.training["recipe"]["form"] == form


def test_a_published_pattern_is_taken_in_the_place_of_an_identification(tiny_dense, tmp_path):
    pattern = tmp_path / "heads.tsv"
    pattern.write_text("0.9\t0.1\n0.5\t0.5\n0.0\t1.0\n")
    named = HeadRecipe("duo", steps=2, pattern=str(pattern))
    heads.identify_from(tiny_dense, named).save(tmp_path / "heads.safetensors", tiny_dense)
    found = head_profile.load(tmp_path / "heads.safetensors", tiny_dense)
    assert torch.equal(found.gates, head_profile.load(pattern, tiny_dense).gates)
    assert found.training == {"source": "heads.tsv"}


def test_the_schedule_of_wg_kv_is_that_of_its_gates(recipe):
    gates, found = recipe(steps=50, learning_rate=0.2, warmup=0.1), HeadRecipe("wg_kv", steps=50, learning_rate=0.2)
    assert [found.rate(i) for i in range(50)] == [gates.rate(i) for i in range(50)] and found.rate(49) < 0.001


def test_the_trapezoid():
    r = HeadRecipe(steps=100)
    assert r.rate(0) == pytest.approx(0.002) and r.rate(9) == pytest.approx(0.01)
    assert [r.rate(i) for i in (19, 50, 79, 99)] == pytest.approx([0.02, 0.02, 0.02, 0.002])


def test_published_patterns_are_read_and_ties_broken_by_seed(tiny_dense, tmp_path):
    path = tmp_path / "full_attention_heads.tsv"
    path.write_text("0.9\t0.1\n0.5\t0.5\n0.0\t1.0\n")
    profile = head_profile.load(path, tiny_dense)
    assert profile.retrieval_heads(2).tolist() == [[True, False], [False, False], [False, True]]
    assert {tuple(profile.retrieval_heads(3, seed)[1].tolist()) for seed in range(9)} == {(True, False), (False, True)}
    assert profile.retrieval_heads(6).all() and not HeadProfile(profile.gates).retrieval_heads(0).any()
    for content, message in (
        ("0.9\t0.1\n", "take the pattern of this model"),
        ("a\tb\n", "no table"),
        ("2\t0\n" * 3, "outside"),
    ):
        path.write_text(content)
        with pytest.raises(InputError, match=message):
            head_profile.load(path, tiny_dense)
    with pytest.raises(InputError, match="is missing; download the pattern"):
        head_profile.load(tmp_path / "no.tsv", tiny_dense)


def test_recipe_files_that_cannot_be_used(tmp_path):
    path = tmp_path / "recipe.yaml"
    with pytest.raises(InputError, match="is missing; write a recipe"):
        GateRecipe.read(path)
    path.write_bytes(b"\xff\xfe: [")
    with pytest.raises(InputError, match="is not YAML"):
        GateRecipe.read(path)
    path.write_text("- a list")
    with pytest.raises(InputError, match="holds no mapping"):
        GateRecipe.read(path)
    path.write_text("window: 3")
    with pytest.raises(InputError, match="the key lambdas is missing"):
        GateRecipe.read(path)
    with pytest.raises(InputError, match="the key head_profile is missing"):
        HeadRecipe.read(path)
    path.write_text("head_profile: {form: dua}")
    with pytest.raises(InputError, match="did you mean 'duo'"):
        HeadRecipe.read(path)
    path.write_text("head_profile: {sink: 3}")
    with pytest.raises(InputError, match="did you mean 'sinks'"):
        HeadRecipe.read(path)


def test_the_benchmark_checks_and_times_all_arms(capsys):
    relative = bench.errors("cpu", torch.float32, 70, (4, 2), 16, 9)
    assert set(relative) == {"output", "query", "key", "value", "gate"} and max(relative.values()) < 1e-5
    small = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1}
    lm = bench.model(bench.SMOLLM2 | small | {"num_attention_heads": 4, "num_key_value_heads": 2}, "cpu", torch.float32)
    without, flex, with_, together = bench.bench(lm, [(64, 2)], window=8, repeats=1)
    assert without["overhead"] == 0 and with_["overhead"] == pytest.approx(with_["seconds"] / without["seconds"] - 1)
    assert with_["overhead_flex"] == pytest.approx(with_["seconds"] / flex["seconds"] - 1) and not flex["overhead_flex"]
    assert with_["tokens_per_second"] == pytest.approx(128 / with_["seconds"])
    assert (with_["lambdas"], together["lambdas"]) == (1, 7)
    assert together["tokens_per_second"] == pytest.approx(128 / together["seconds"])
    assert "what=with_gates" in capsys.readouterr().out


def test_the_benchmark_without_gates_is_the_same_attention_twice(tiny_dense, tokens):
    with torch.no_grad():
        plain = decoder(tiny_dense.model)(tokens[None], use_cache=False).last_hidden_state
        with gated(tiny_dense, bench.Causal()):
            again = decoder(tiny_dense.model)(tokens[None], use_cache=False).last_hidden_state
    torch.testing.assert_close(again, plain, atol=1e-4, rtol=1e-4)
