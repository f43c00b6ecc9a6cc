"""AIME 2025 as lm-eval's own task has it: our problems, prompts and scores against it, and where they differ.

WG-KV's authors ran a fork of lm-eval whose prompt asks for steps and a box; ours is the fork's.
"""

from __future__ import annotations

import json
from importlib import resources

import pytest
import yaml
from ruler_tools import tokenizer

from kvrepro.benchmarks.reasoning import score
from kvrepro.benchmarks.reasoning.aime import load
from kvrepro.benchmarks.reasoning.definitions import AIME25

pytest.importorskip("lm_eval")


@pytest.fixture(scope="module")
def task():
    text = resources.files("lm_eval.tasks.aime").joinpath("aime25.yaml").read_text()
    return yaml.load(text.replace("!function ", ""), yaml.SafeLoader)


@pytest.fixture(scope="module")
def theirs():
    from lm_eval.tasks.aime.utils import process_results

    return lambda text, answer="70": float(process_results({"problem": "?", "answer": answer}, [text])["exact_match"])


def test_problems_and_prompt(task, tmp_path):
    """The prompt is the task's up to the wording after the problem; the task decodes greedily and shorter answers."""
    problem = {"problem": "How many digits are there?", "answer": "10"}
    path = tmp_path / "aime25.jsonl"
    path.write_text(json.dumps(problem))
    (ours,) = load(path, 30, 500, tokenizer(), 1)
    prompt = task["doc_to_text"].replace("{{problem}}", problem["problem"])
    assert task["dataset_path"] == AIME25["source"]["data"] and task["doc_to_target"] == "{{answer}}"
    assert ours.instruction + ours.context == prompt.removesuffix("\nAnswer:")
    assert ours.questions[0].references == (problem["answer"],)
    assert task["repeats"] == 1 and task["num_fewshot"] == 0
    assert not task["generation_kwargs"]["do_sample"] and task["generation_kwargs"]["max_gen_toks"] == 32768


@pytest.mark.parametrize(
    "text",
    [
        "so the answer is \\boxed{70}.",
        "\\boxed{ 70 }",
        "\\boxed{70\\text{ degrees}}",
        "\\boxed{3} and finally \\boxed{70}",
        "\\boxed{70} and finally \\boxed{3}",
        "<think>\\boxed{71}</think>\n\\boxed{70}",
        "<think>\\boxed{70}</think> It is \\boxed{71}.",
        "\\boxed{\\frac{70}{1}}",
        "\\boxed{-70}",
        "\\boxed{}",
        "\\boxed{71}",
        "no answer",
        "",
    ],
)
def test_scores_agree(theirs, text):
    assert score.aime25(text, "70") == theirs(text)


@pytest.mark.parametrize(
    ("text", "ours", "why"),
    [
        ("\\boxed{070}", 1, "leading zeros"),
        ("\\boxed{$70$}", 1, "dollar signs in the box"),
        ("\\boxed{7,0}", 1, "a comma between digits"),
        ("70", 0, "an answer without a box"),
        ("It is $70$.", 0, "an answer between dollar signs"),
        ("<think>\\boxed{70}</think> It is 70.", 0, "a box in the thoughts alone"),
        ("\\boxed{x=70}", 0, "an equation in the box"),
    ],
)
def test_scores_differ(theirs, text, ours, why):
    assert score.aime25(text, "70") == ours != theirs(text), why
