"""What WG-KV's authors plotted in their figures of accuracy and admission, where a user has fetched it.

Their repository has no licence, so its files are no part of this one: ``snakemake published_curves`` fetches them by
the checksums of ``published.yaml``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

import pandas as pd
import yaml

from kvrepro.benchmarks import helmet
from kvrepro.errors import InputError

FOLDER = "data/published/wg-kv"
LLAMA, QWEN, THINKING = "Llama-3.1-8B-Instruct", "Qwen3-4B-Instruct-2507", "Qwen3-4B-Thinking-2507"
#: Their models as the paper calls them, by the name in the registry.
MODELS = {LLAMA: "Llama-3.1-8B", QWEN: "Qwen3-4B-2507", THINKING: "Qwen3-4B-Thinking"}

_METHODS = {
    "WG-KV": "wg_kv",
    "Local Attention": "local_attention",
    "DuoAttention": "duo_attention",
    "AdaEA++": "adaea++",  # which the paper leaves out, and so do figures
    "Quest Only": "quest",
    "WG-KV + Quest": "wg_kv+quest",
}
_TASKS = {
    "Natural Questions": "kilt_nq",
    "TriviaQA": "kilt_triviaqa",
    "PopQA": "kilt_popqa_3",
    "HotpotQA": "kilt_hotpotqa",
    "NarrativeQA": "narrativeqa",
    "InfiniteBench QA": "infbench_qa_eng",
    "InfiniteBench MC": "infbench_choice_eng",
    "MS MACRO": "msmarco_rerank_psg",
    "InfiniteBench Sum": "infbench_sum_eng",
    "Multi-LexSum": "multi_lexsum",
    "TREC Fine": "trec_fine",
    "NLU": "nlu",
    "BANKING77": "banking77",
    "CLINC150": "clinic150",
}
LIMIT = 4096  #: entries a head of the bounded rows, which their file has in its name


def downloads() -> dict[str, dict[str, str]]:
    """The address and the checksum of every file of the pinned commit, by its path."""
    pinned = yaml.safe_load(resources.files(__package__).joinpath("published.yaml").read_text("utf-8"))
    at = f"https://raw.githubusercontent.com/{pinned['repository']}/{pinned['commit']}"
    return {path: {"url": f"{at}/{path}", "sha256": sha256} for path, sha256 in pinned["files"].items()}


@dataclass(frozen=True)
class File:
    """One of their files: the model that it is about, its columns by their names here, and what makes ``rows`` of it.
    ``also`` are columns with one value, which the file does not say. ``own``: not to be drawn beside another model, as
    losses have the scale of a model's states, and heads are its own."""

    model: str
    columns: dict
    rows: Callable[[pd.DataFrame], pd.DataFrame]
    also: dict[str, object] = field(default_factory=dict)
    own: bool = False


def _of_tasks(found: pd.DataFrame) -> pd.DataFrame:
    """Scores in percent without those of a judge model, which is not run here."""
    found = found.assign(method=found["method"].map(_METHODS), task=found["task"].map(_TASKS))
    if found["method"].isna().any() or found["task"].isna().any():
        raise ValueError("a method or a panel is none of the paper's")
    return _numbers(found[~found["task"].isin(helmet.judged(found["task"]))], ["size", "score"])


def _of_limits(found: pd.DataFrame) -> pd.DataFrame:
    """Scores in percent by λ, which is missing without admission; a cache that never filled up has no evictions."""
    found = found.assign(trade_off=found["trade_off"].replace("Off", None), evictions=found.get("evictions", 0.0))
    found = _numbers(found, ["trade_off", "size", "score", "evictions"])
    return found.assign(score=100 * found["score"], evictions=found["evictions"].fillna(0))


def _of_settings(found: pd.DataFrame) -> pd.DataFrame:
    """Loss and size of every λ and τ."""
    return _numbers(found, found.columns)


def _of_heads(found: pd.DataFrame) -> pd.DataFrame:
    """A line a layer and KV head."""
    long = _numbers(found, found.columns).stack(future_stack=True)
    return long.rename_axis(["layer", "head"]).rename("size").reset_index()


def _numbers(found: pd.DataFrame, columns: Iterable[str]) -> pd.DataFrame:
    return found.astype(dict.fromkeys(columns, float))


_AXES = {"panel_title": "task", "method": "method", "score": "score"}
_LIMITS = {"lambda": "trade_off", "avg_kv": "size", "accuracy": "score"}
_SETTINGS = {"lambda": "trade_off", "threshold": "threshold", "kv_size": "size", "distill_loss": "loss"}
_HEADS = {f"head_{number}": number for number in range(8)}
#: What figures draw of their files. A size is a share of the full cache; of a selection the entries that a token reads,
#: of reasoning those that a head holds.
FILES = {
    "data/benchmark.csv": File(LLAMA, _AXES | {"kv_size": "size"}, _of_tasks),
    "data_qwen3_4b_2507/benchmark.csv": File(QWEN, _AXES | {"kv_size": "size"}, _of_tasks),
    # with the λ of the paper's figure; integration.csv, which is younger, has another one
    "data/integration_0.08.csv": File(LLAMA, _AXES | {"kv_attended": "size"}, _of_tasks),
    "data/snapkv_no.csv": File(THINKING, _LIMITS, _of_limits, {"limit": float("nan")}),
    "data/snapkv_4096.csv": File(THINKING, _LIMITS | {"num_evict": "evictions"}, _of_limits, {"limit": LIMIT}),
    "data/threshold.csv": File(LLAMA, _SETTINGS, _of_settings, {"local": True}, own=True),
    "data/threshold_local1.csv": File(LLAMA, _SETTINGS, _of_settings, {"local": False}, own=True),
    "data/gate_1.csv": File(LLAMA, _HEADS, _of_heads, {"task": "code"}, own=True),
    "data/gate_2.csv": File(LLAMA, _HEADS, _of_heads, {"task": "html_to_tsv"}, own=True),
}


def available(names: Sequence[str], model: str, folder: str | Path = FOLDER) -> list[str]:
    """The paths of those of some files that are drawn beside a model: of its own where there are any, otherwise of the
    first file's model, unless that is for itself. Empty where the user has not all of these."""
    about = {name: FILES[name].model for name in names}
    beside = model if model in about.values() else next((about[name] for name in names if not FILES[name].own), None)
    paths = [Path(folder) / name for name in names if about[name] == beside]
    return [str(path) for path in paths] if all(path.is_file() for path in paths) else []


def read(paths: Iterable[str | Path]) -> pd.DataFrame:
    """The rows of files of the same kind, with the columns that :data:`FILES` names and ``model``. InputError where a
    file has another content."""
    return pd.concat([_read(Path(path)) for path in paths], ignore_index=True)


def _read(path: Path) -> pd.DataFrame:
    file = FILES["/".join(path.parts[-2:])]
    try:
        found = pd.read_csv(path)[list(file.columns)].rename(columns=file.columns)
        rows = file.rows(found).assign(model=file.model, **file.also)
        if rows.drop(columns=["trade_off", "limit"], errors="ignore").isna().any(axis=None) or rows.empty:
            raise ValueError("a number is missing")
    except (OSError, KeyError, ValueError) as error:
        raise InputError(
            f"{path} does not hold the published numbers ({error}); delete it, or fetch it again with the target "
            "published_curves."
        ) from error
    return rows
