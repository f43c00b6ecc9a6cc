import json
import random
import re
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import yaml
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from kvrepro.benchmarks import ruler
from kvrepro.benchmarks.example import render
from kvrepro.benchmarks.reasoning import registers
from kvrepro.benchmarks.ruler.definitions import TASKS
from kvrepro.benchmarks.ruler.draws import split_of
from kvrepro.errors import InputError
from kvrepro.training.lab import checkpoint, evaluation
from kvrepro.training.lab.batches import batches, make_batch
from kvrepro.training.lab.config import LabConfig, Part, Stage, load_config
from kvrepro.training.lab.export import export_weights, model_card
from kvrepro.training.lab.fast import FastForward
from kvrepro.training.lab.model import build_model
from kvrepro.training.lab.prepare import write_ngram, write_texts
from kvrepro.training.lab.rows import ANSWER, EOS, SKIP, TEXT, RowMaker
from kvrepro.training.lab.scan import TriangularInverse
from kvrepro.training.lab.tokenizer import save_tokenizer, train_tokenizer
from kvrepro.training.lab.train import Trainer, train
from kvrepro.training.lab.train import main as train_main

ROOT = Path(__file__).parent.parent
VOCABULARY = 640
SHARED = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 16384,
}
HYBRID = SHARED | {
    "model_type": "qwen3_5_text",
    "num_hidden_layers": 4,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25},
}
DENSE = SHARED | {
    "model_type": "qwen3",
    "num_hidden_layers": 2,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e5},
}
STAGE = Stage(until=1, lengths={128: 1}, plain=0.2, helper=0.5, tasks={"niah_single_1": 1, "vt": 1})
PART = Part(total_steps=12, learning_rate=5e-3, final_learning_rate=1e-3, warmup_steps=3, stages=(STAGE,))
LATER = replace(PART, total_steps=8, learning_rate=2e-3, seed_offset=10, stages=(replace(STAGE, plain=0.5),))
CONFIG = LabConfig(
    name="tiny",
    model=DENSE,
    batch_tokens=512,
    weight_decay=0.05,
    betas=(0.9, 0.95),
    clip=1.0,
    text_weight=0.1,
    log_every=4,
    checkpoint_seconds=1e9,
    check_every=1000,
    check_items=1,
    check_lengths=(),
    parts=(PART,),
)


@pytest.fixture(scope="module")
def words():
    rng = random.Random(1)
    syllables = ["ba", "de", "fi", "go", "hu", "ka", "le", "mi", "no", "pu", "ra", "se", "ti", "vo", "wu"]
    return sorted({"".join(rng.choices(syllables, k=3)) for _ in range(1500)})


@pytest.fixture(scope="module")
def prose(words):
    rng = random.Random(2)
    return [" ".join(rng.choices(words, k=9)).capitalize() + "." for _ in range(400)]


@pytest.fixture(scope="module")
def data(tmp_path_factory, words, prose):
    folder = tmp_path_factory.mktemp("lab-data")
    documents = {"a": {"train": prose[:200], "heldout": prose[200:210]}, "b": {"train": prose, "heldout": prose[:3]}}
    tokenizer = train_tokenizer([*prose, *words, "special magic number hidden in the text"], VOCABULARY)
    save_tokenizer(tokenizer, folder)
    write_texts(folder, tokenizer, documents, prose, words)
    sources = ruler.offline(prose, words, "eval")
    fast_tokenizer = AutoTokenizer.from_pretrained(folder)
    evaluation.write_items(folder, 1024, evaluation.make_items(fast_tokenizer, 1024, 1, sources))
    return folder


@pytest.fixture(scope="module")
def maker(data):
    return RowMaker.load(data)


# --- forward ---------------------------------------------------------------------------------------------------------


def test_triangular_inverse_is_exact_where_keys_are_equal():
    k = F.normalize(torch.randn(3, 1, 64), dim=-1).expand(-1, 64, -1)
    a = (0.99 * (k @ k.transpose(1, 2))).tril(-1)
    exact = torch.linalg.inv(torch.eye(64).double() + a.double())
    assert (TriangularInverse.apply(a) - exact).abs().max() < 1e-5


@pytest.mark.parametrize("settings", [HYBRID, DENSE], ids=["hybrid", "dense"])
def test_fast_forward_equals_transformers(settings):
    model = build_model(settings, EOS, seed=1)
    rng = torch.Generator().manual_seed(0)
    ids = torch.randint(0, VOCABULARY, (2, 193), generator=rng)
    x, y = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
    answer = (torch.rand(x.shape, generator=rng) < 0.3).float()
    text = (torch.rand(x.shape, generator=rng) < 0.8).float()

    logits = model(input_ids=x).logits
    ce = F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none").view(x.shape)
    stock = (ce * answer).sum() / answer.sum() + 0.1 * (ce * text).sum() / text.sum()
    fast = FastForward(model, torch.float32)
    answer_loss, text_loss, _ = fast.loss(x, y, answer, text)
    assert torch.allclose(fast.logits(x), logits, atol=2e-5)
    assert torch.equal(fast.predict(x), logits.argmax(-1))
    assert torch.allclose(fast.nll(x, y), ce, atol=2e-5)
    for a, b in zip(
        torch.autograd.grad(stock, list(model.parameters())),
        torch.autograd.grad(answer_loss + 0.1 * text_loss, list(model.parameters())),
        strict=True,
    ):
        assert (a - b).norm() <= 1e-4 * a.norm() + 1e-9


# --- rows ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", [*TASKS, "registers"])
def test_samples_fit_and_answer(maker, task):
    rng = random.Random(5)
    for length in (700, 1600):
        made = [sample for _ in range(4) if (sample := maker.sample(rng, task, length))]
        assert made
        for sample in made:
            ids, codes = maker.encode(sample)
            assert len(ids) == len(codes) <= length
            assert codes[-1] == ANSWER and ids[-1] == EOS
            assert ids.count(EOS) == sum(piece[-1][1] == ANSWER for piece in sample)


def test_only_haystack_prose_carries_no_loss(maker, prose):
    sample = maker.sample(random.Random(1), "niah_single_2", 1200)
    ids, codes = maker.encode(sample)
    skipped = maker.tokenizer.decode([i for i, code in zip(ids, codes, strict=True) if code == SKIP])
    kept = maker.tokenizer.decode([i for i, code in zip(ids, codes, strict=True) if code == TEXT])
    assert sum(sentence in skipped for sentence in prose) >= 5
    assert "special magic" not in skipped
    assert "One of the special magic numbers" in kept and not any(sentence in kept for sentence in prose)


def test_training_strings_are_not_evaluation_strings(maker):
    rng = random.Random(3)
    for task in ("niah_multikey_3", "niah_multivalue", "vt", "cwe", "fwe", "qa_1"):
        sample = next(s for _ in range(9) if (s := maker.sample(rng, task, 900)))
        answer = "".join(s for s, code in sample[3] if code == ANSWER)
        strings = answer.replace(", and ", ", ").split(", ") if task.startswith("niah") else answer.split()
        if task != "qa_1":  # trades, goods and years have no split
            assert {split_of(s.strip()) for s in strings} == {"train"}
    assert all(split_of(word) == "train" for word in maker.texts.list_words)


def test_register_programs_are_written_as_the_benchmark_asks_them(maker, data):
    length, tokenizer = 1800, AutoTokenizer.from_pretrained(data)
    example = registers.generate(1, length, 5, tokenizer, 0, "eval")[0]
    sample = maker.sample(random.Random(4), "registers", length)
    instruction, context, question, reply = ("".join(s for s, _ in piece) for piece in sample)
    assert instruction == example.instruction
    names = re.findall(r"[A-Z]{3}", context)
    program = re.findall(r"(\w{3}) \+ (\w{3}) = (\w{3})", context)
    digits = {name: int(digit) for name, digit in re.findall(r"(\w{3}) (\d)", context)}
    assert registers.Program(digits, tuple(program)).context == context
    assert {split_of(name) for name in names} == {"train"} and 3 <= len(program) <= 8
    rounds = reply.count("round")
    assert rounds > 1 and question == registers.question(rounds)
    assert reply == registers.Program(digits, tuple(program)).run(rounds)[0]
    assert {code for _, code in sample[3]} == {ANSWER}


@pytest.mark.parametrize("task", TASKS)
def test_rows_have_the_pieces_of_evaluation(maker, data, words, prose, task):
    """Instruction and question, up to what is drawn, are those of the benchmark's own generator."""
    length = 4096 if task in ("cwe", "vt") else 1500
    tokenizer = AutoTokenizer.from_pretrained(data)
    example = ruler.generate(task, 1, length, tokenizer, 0, ruler.offline(prose, words, "eval"))[0]
    rng = random.Random(11)
    for _ in range(40):
        sample = maker.sample(rng, task, length)
        instruction, _, question, reply = ("".join(s for s, _ in piece) for piece in sample[:4])
        if len(instruction) > 500 or task not in ("cwe", "vt"):  # with the one-shot example
            break

    def frame(text):  # what the templates fix
        fixed = [w for w in text.replace("\n", " \n ").split() if not any(c.isdigit() for c in w)]
        drawn = {w for w in fixed if w.isupper() and len(w) in (3, 5) and w != "VAR"} | set(words)
        return [w for w in fixed if w.strip("?,.") not in drawn and "-" not in w]

    if task != "cwe" and task != "vt":
        assert instruction == example.instruction
    else:
        assert instruction.split()[-12:] == example.instruction.split()[-12:]
        assert frame(instruction)[:15] == frame(example.instruction)[:15]
        assert instruction[-2:] == example.instruction[-2:]
    if not task.startswith("qa"):
        assert frame(question) == frame(example.questions[0].text)
    else:
        assert question.split("Question:")[0] == example.questions[0].text.split("Question:")[0]
    assert question.endswith("Answer:") or not task.startswith("qa")
    assert question[-4:] == example.questions[0].text[-4:]
    assert reply.startswith(" ") != question.endswith(" ")
    ids, _ = maker.encode(sample[:3])
    twin = replace(
        example,
        instruction=instruction,
        context="".join(s for s, _ in sample[1]),
        questions=(replace(example.questions[0], text=question, answer_prefix=""),),
    )
    prompt = render(twin, tokenizer)
    assert ids == prompt.prefix + prompt.questions[0]


def test_cwe_answers_come_in_random_order(maker):
    rng = random.Random(8)
    first_is_earliest = []
    for _ in range(12):
        sample = maker.sample(rng, "cwe", 500)
        context = "".join(s for s, _ in sample[1])
        named = [s.strip() for s, code in sample[3] if code == ANSWER]
        first_is_earliest.append(min(named, key=lambda w: context.index(f" {w}")) == named[0])
    assert 0 < sum(first_is_earliest) < 12


# --- batches and training --------------------------------------------------------------------------------------------


def test_batches_depend_on_the_step_alone(maker, data):
    expected = [make_batch(CONFIG, PART, maker, 3, step) for step in range(4, 8)]
    for start, workers in ((4, 0), (5, 1)):
        source = batches(CONFIG, PART, data, 3, start, workers)
        for ids, codes in expected[start - 4 :]:
            got_ids, got_codes = next(source)
            assert np.array_equal(ids, got_ids) and np.array_equal(codes, got_codes)
        del source
    assert not np.array_equal(expected[0][0], make_batch(CONFIG, PART, maker, 4, 4)[0])
    shifted = make_batch(CONFIG, replace(PART, seed_offset=2), maker, 1, 4)
    assert np.array_equal(expected[0][0], shifted[0])


def trainer(config, run, data):
    torch.set_num_threads(1)
    return Trainer(config, 0, run, data, torch.device("cpu"), torch.float32)


def run_training(config, run, data, **kwargs):
    one = trainer(config, run, data)
    kwargs.setdefault("say", lambda text: None)
    return train(one, lambda part, step: batches(config, part, data, 0, step, 0), None, **kwargs), one


def test_an_interrupted_run_continues_as_if_it_had_not_been(tmp_path, data):
    done, whole = run_training(CONFIG, tmp_path / "whole", data)
    assert done
    done, part = run_training(CONFIG, tmp_path / "part", data, max_seconds=0)
    assert not done and part.step == 1 and not (tmp_path / "part/done").exists()
    done, part = run_training(CONFIG, tmp_path / "part", data)
    assert done and part.step == PART.total_steps
    for a, b in zip(whole.parameters, part.parameters, strict=True):
        assert torch.equal(a, b)
    curve = (tmp_path / "part/loss.csv").read_text().splitlines()
    assert curve[0].startswith("part,step,") and len(curve) == 1 + PART.total_steps // CONFIG.log_every
    with pytest.raises(InputError, match="another config or seed"):
        checkpoint.load(tmp_path / "part", replace(CONFIG, clip=2.0))


def test_a_run_of_two_parts_continues_within_either(tmp_path, data, monkeypatch):
    config = replace(CONFIG, parts=(PART, LATER))
    done, whole = run_training(config, tmp_path / "whole", data)
    assert done and whole.number == 1 and whole.step == LATER.total_steps
    stops = iter([(0, 5), (1, 0), (1, 3)])  # within the first part, as the second begins, and within it
    for stop in stops:
        one = trainer(config, tmp_path / "part", data)

        def until(*batch, one=one, stop=stop, step=one.train_step):
            if (one.number, one.step) == stop:
                one.save()
                raise KeyboardInterrupt
            return step(*batch)

        monkeypatch.setattr(one, "train_step", until)
        with pytest.raises(KeyboardInterrupt):
            train(one, lambda part, step: batches(config, part, data, 0, step, 0), None, say=lambda text: None)
        assert not (tmp_path / "part/done").exists()
    done, resumed = run_training(config, tmp_path / "part", data)
    assert done and (tmp_path / "part/done").exists()
    for a, b in zip(whole.parameters, resumed.parameters, strict=True):
        assert torch.equal(a, b)
    assert [(p["part"], p["step"]) for p in whole.curve] == [(1, 4), (1, 8), (1, 12), (2, 4), (2, 8)]


def test_a_later_part_begins_with_the_rounded_weights_of_the_one_before(tmp_path, data):
    _, first = run_training(CONFIG, tmp_path / "first", data)
    config = replace(CONFIG, parts=(PART, LATER))
    both = trainer(config, tmp_path / "both", data)
    done = train(both, lambda part, step: batches(config, part, data, 0, step, 0), None, say=lambda text: None)
    alone = trainer(replace(CONFIG, parts=(LATER,)), tmp_path / "alone", data)
    with torch.no_grad():
        for a, b in zip(alone.parameters, first.parameters, strict=True):
            a.copy_(b.to(torch.bfloat16).float())
            assert not torch.equal(a, b) or b.dim() < 2
    train(alone, lambda part, step: batches(alone.config, part, data, 0, step, 0), None, say=lambda text: None)
    assert done
    for a, b in zip(both.parameters, alone.parameters, strict=True):
        assert torch.equal(a, b)


def test_training_lowers_the_loss(tmp_path, data):
    config = replace(CONFIG, log_every=10, parts=(replace(PART, total_steps=60),))
    _, one = run_training(config, tmp_path, data)
    assert one.curve[-1]["text_loss"] < one.curve[0]["text_loss"] - 0.5
    assert one.curve[-1]["answer_loss"] < one.curve[0]["answer_loss"] - 0.5


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path, data):
    config = replace(CONFIG, parts=(replace(PART, total_steps=40),))
    one = trainer(config, tmp_path, data)
    one.save()
    before = (tmp_path / checkpoint.FILE).read_bytes()
    with torch.no_grad():
        one.parameters[0][5] = float("nan")
    with pytest.raises(InputError, match="not finite"):
        train(one, lambda part, step: batches(config, part, data, 0, step, 0), None, say=lambda text: None)
    assert (tmp_path / checkpoint.FILE).read_bytes() == before


# --- evaluation and export -------------------------------------------------------------------------------------------


def test_decode_equals_token_by_token_greedy(data):
    model = build_model(DENSE, EOS, seed=3)
    fast = FastForward(model, torch.float32)
    items = [
        evaluation.Item("qa_1", [7, 8, 9, 10 + i], [20, 21, 22][:i], ["x"], 12) for i in range(3)
    ]  # drafts of several lengths, all wrong
    answers = evaluation.decode(fast.predict, items, 64, 128, "cpu")
    for item, answer in zip(items, answers, strict=True):
        ids = torch.tensor([item.prompt])
        expected = model.generate(ids, max_new_tokens=12, do_sample=False, eos_token_id=EOS, pad_token_id=EOS)
        expected = expected[0, len(item.prompt) :].tolist()
        assert answer == (expected[: expected.index(EOS)] if EOS in expected else expected)


def test_perplexity_of_a_uniform_model(data):
    def nll(x, y):
        return torch.full(x.shape, float(np.log(50.0)))

    documents = {"a": [np.arange(5, 30), np.arange(3)], "b": [np.arange(1500) % 97]}
    assert evaluation.perplexities(nll, documents, 2048, "cpu") == {"a": 50.0, "b": 50.0}


@pytest.mark.parametrize("settings", [HYBRID, DENSE], ids=["hybrid", "dense"])
def test_export_loads_in_transformers(tmp_path, data, settings):
    config = replace(CONFIG, model=settings)
    one = trainer(config, tmp_path / "run", data)
    one.save()
    assert export_weights(config, tmp_path / "run", data, tmp_path / "out") < 1e-3
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert model.dtype == torch.bfloat16 and model.generation_config.eos_token_id == EOS
    assert model.config.tie_word_embeddings
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer.eos_token_id == EOS and tokenizer.decode([EOS]) == "<|endoftext|>"
    assert tokenizer.encode("12 a", add_special_tokens=False)[:2] == tokenizer.convert_tokens_to_ids(["1", "2"])


def test_evaluation_and_model_card(tmp_path, data, capsys):
    parts = (replace(PART, total_steps=4), replace(LATER, total_steps=2))
    values = asdict(replace(CONFIG, batch_tokens=1024, log_every=2, parts=parts))
    values = json.loads(json.dumps(values))
    for part in values["parts"]:
        part["stages"][0]["lengths"] = STAGE.lengths  # JSON has no integer keys
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(values))
    few = [item for item in evaluation.read_items(data, 1024, 1) if item.task in ("vt", "qa_1")]
    shutil.copytree(data, tmp_path / "data")
    evaluation.write_items(tmp_path / "data", 1024, few)
    write_ngram(tmp_path / "data", VOCABULARY)
    config, folders = load_config(path), []
    for seed in (0, 1):
        run = tmp_path / f"run{seed}"
        arguments = ["--config", path, "--data", tmp_path / "data", "--seed", seed, "--workers", 0, "--device", "cpu"]
        train_main([str(a) for a in [*arguments, "--out", run]])
        arguments = ["run", "--config", path, "--data", tmp_path / "data", "--run", run, "--lengths", 1024]
        evaluation.main([str(a) for a in [*arguments, "--device", "cpu"]])
        folders.append(tmp_path / f"out{seed}")
        export_weights(config, run, tmp_path / "data", folders[-1])
    assert "complete: part 2, step 2" in capsys.readouterr().out
    accuracy = {"ruler_1024": {"vt": 12.5}, "items_per_task": 9}
    quick, official = model_card(config, folders, 1), model_card(config, folders, 1, accuracy)
    with pytest.raises(InputError, match=r"seed 7 is in none of the folders, which hold \[0, 1\]"):
        model_card(config, folders, 7)
    assert "accuracy/tiny/accuracy.json" in quick and "accuracy/tiny/accuracy.json" not in official
    assert "1,024 tokens, 9 items a task." in official and "| vt | 12.5 |" in official
    for card in (quick, official):
        assert "quick evaluation after part 2 of 2\n\n1 items a task" in card and "The weak task is" in card
        assert "| 1 | 4 | 0.0M |" in card and "| 2 | 2 | 0.0M |" in card
        assert "| seed 0 | seed 1 | interpolated 3-gram |" in card and "King James" not in card and "PSF-2.0" in card
    told = folders[0] / "evaluation.json"
    told.write_text(json.dumps(json.loads(told.read_text()) | {"part": 1, "step": 3}))
    assert "| task | seed 0, after part 1, stopped at step 3 of 4 | seed 1 |" in model_card(config, folders, 1)


def test_registers_are_evaluated_where_they_were_trained(tmp_path, data):
    assert "registers" not in {item.task for item in evaluation.read_items(data, 1024, 1)}
    (item,) = evaluation.read_items(data, 1024, 1, ("registers",))
    tokenizer = Tokenizer.from_file(str(data / "tokenizer.json"))

    def right(ids):  # the next token of the row, as a model that has learned it says
        return torch.cat([ids[:, 1:], torch.full_like(ids[:, :1], EOS)], dim=1)

    scores, wrong = evaluation.accuracy(right, [item], 1024, 1024, "cpu", tokenizer)
    assert scores == {"registers": 100.0} and not wrong
    scores, wrong = evaluation.accuracy(lambda ids: torch.zeros_like(ids), [item], 1024, 1024, "cpu", tokenizer)
    assert scores == {"registers": 0.0} and wrong["registers"]


def test_training_begins_with_the_weights_of_a_model(tmp_path, data):
    config = replace(CONFIG, batch_tokens=1024, check_lengths=())
    first = Trainer(config, 0, tmp_path / "first", data, torch.device("cpu"), torch.float32)
    first.model.save_pretrained(tmp_path / "model")
    shutil.copy(data / "tokenizer.json", tmp_path / "model")
    begun = replace(config, start=str(tmp_path / "model"))
    second = Trainer(begun, 1, tmp_path / "second", data, torch.device("cpu"), torch.float32)
    for a, b in zip(first.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(a, b)
    assert begun.sha256 != config.sha256
    (tmp_path / "model/tokenizer.json").write_text("{}")
    with pytest.raises(InputError, match="has another tokenizer than"):
        Trainer(begun, 1, tmp_path / "third", data, torch.device("cpu"), torch.float32)
    with pytest.raises(InputError, match="none holds no weights"):
        Trainer(replace(config, start=str(tmp_path / "none")), 1, tmp_path / "third", data, "cpu", torch.float32)


# --- config ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["lab-hybrid", "lab-dense"])
def test_shipped_configs(name):
    config = load_config(ROOT / f"config/lab/{name}.yaml")
    assert config.name == name
    first, last = config.parts[0], config.parts[-1]
    assert first.stage(0).lengths == {256: 1} and max(first.stage(first.total_steps).lengths) == 8192
    assert last.rate(last.total_steps) == pytest.approx(last.final_learning_rate)
    parameters = sum(p.numel() for p in build_model(config.model, EOS, 0).parameters())
    assert 8e6 < parameters < 15e6


def test_config_errors_name_the_key(tmp_path):
    text = (ROOT / "config/lab/lab-dense.yaml").read_text()
    path = tmp_path / "bad.yaml"
    path.write_text(text.replace("clip:", "clips:"))
    with pytest.raises(InputError, match="did you mean 'clip'"):
        load_config(path)
    path.write_text(text.replace("{until: 1.00", "{until: 0.99"))
    with pytest.raises(InputError, match="end with 1"):
        load_config(path)
    path.write_text(text.replace("lengths: {512: 0.7", "lengths: {500: 0.7"))
    with pytest.raises(InputError, match="row length 500"):
        load_config(path)
    path.write_text("extends: lab-dens")
    with pytest.raises(InputError, match=r"lab-dens\.yaml"):
        load_config(path)


def test_a_config_may_extend_another_by_parts(tmp_path):
    (tmp_path / "one.yaml").write_text((ROOT / "config/lab/lab-dense.yaml").read_text())
    (tmp_path / "two.yaml").write_text("extends: one\nname: two\n")
    assert load_config(tmp_path / "two.yaml").parts == load_config(tmp_path / "one.yaml").parts


def test_a_config_may_begin_with_the_weights_of_another():
    base, more = (load_config(ROOT / f"config/lab/{name}.yaml") for name in ("lab-dense", "lab-dense-registers"))
    assert more.model == base.model and more.name == "lab-dense-registers" and len(more.parts) == 1
    assert more.start == "models/lab-dense" and not base.start and more.tasks - base.tasks == {"registers"}
    assert more.parts[-1].stages[0].tasks["registers"] == 70
