"""Accuracy, entries held and evictions under a hard budget and without one: WG-KV Figures 10 and 16."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from kvrepro.analysis import bootstrap
from kvrepro.analysis.bootstrap import Estimate
from kvrepro.analysis.cache_sizes import THRESHOLD
from kvrepro.errors import InputError
from kvrepro.results import DENSE, valid

BENCHMARK = "reasoning"
SEVERAL = 4  #: how many times as long as a limit the whole sequence is at least, where it is several times as long
QUANTITIES = ("value", "peak_entries", "evictions")


@dataclass(frozen=True)
class Setting:
    """What a cache was under: the λ of its gates, None without gates, and its limit of entries a head on average, None
    without a limit; ``bounding`` names the method that kept the limit."""

    trade_off: float | None = None
    budget: int | None = None
    bounding: str | None = None

    @property
    def label(self) -> str:
        """λ as figures call it."""
        return "off" if self.trade_off is None else f"{self.trade_off:g}"


@dataclass(frozen=True)
class Bounded:
    """One model on the benchmark; the estimates are over ``settings``, all of the same items.

    accuracy in percent; entries, the most that a head held on average over the model up to the end of an answer;
    evictions in context, question and answer. Means over items and then tasks; items are resampled.
    """

    settings: list[Setting]
    accuracy: Estimate
    entries: Estimate
    evictions: Estimate
    tasks: tuple[str, ...]
    items: int  #: the fewest items of a task
    failed: int  #: rows that failed a check
    rows: int

    def place(self, setting: Setting) -> int:
        """Where a setting stands; KeyError when it was not run."""
        if setting not in self.settings:
            raise KeyError(setting)
        return self.settings.index(setting)

    def where(self, holds: Callable[[Setting], bool]) -> list[int]:
        """Places of the settings of which something holds, by λ (off first) and budget, rising."""
        found = [i for i, setting in enumerate(self.settings) if holds(setting)]
        return sorted(found, key=lambda i: (self.settings[i].trade_off or 0, self.settings[i].budget or 0))

    @property
    def full(self) -> int:
        """Place of the full cache without a limit."""
        return self.place(Setting())

    @property
    def budgets(self) -> list[int]:
        """The limits, rising."""
        return sorted({setting.budget for setting in self.settings if setting.budget is not None})

    @property
    def boundings(self) -> list[str]:
        """The methods that keep limits, in the order of the rows."""
        return list(dict.fromkeys(s.bounding for s in self.settings if s.bounding is not None))


def bounded(rows: pd.DataFrame, threshold: float = THRESHOLD) -> Bounded:
    """The full cache, write gates of the ``threshold`` alone, and methods with a limit, alone or over these gates.

    Reads accuracy rows of one model on one benchmark. InputError when none has a limit, or no item is valid in all.
    """
    scores = rows[rows["metric"] == "score"] if len(rows) else rows
    if len(scores):
        of_options = _settings(scores["options"].unique(), threshold)
        setting = scores["options"].map(of_options).where(scores["method"] != DENSE, Setting())
        scores = scores.assign(setting=setting)[setting.notna()]
    if not len(scores) or not any(setting.budget for setting in scores["setting"]):
        raise InputError("there are no accuracy rows with a limit of the cache; run the target accuracy.")
    found, blocks, items = list(scores["setting"].unique()), {name: [] for name in QUANTITIES}, []
    heads = _heads(scores)
    for task, part in valid(scores).groupby("task", sort=False):
        wide = part.pivot_table(index="item", columns="setting", values=list(QUANTITIES), aggfunc="mean", sort=False)
        wide = wide.reindex(columns=pd.MultiIndex.from_product([QUANTITIES, found])).dropna()
        if wide.empty:
            raise InputError(f"no item of task {task} passed its checks in every method; see the column failed_checks.")
        items.append(len(wide))
        for name in QUANTITIES:
            blocks[name].append(wide[name].to_numpy(float))
    scale = {"value": 100, "peak_entries": 1 / heads, "evictions": 1}
    estimates = [bootstrap.mean(blocks[name]).map(lambda x, by=scale[name]: by * x) for name in QUANTITIES]
    tasks = tuple(scores["task"].unique())
    return Bounded(found, *estimates, tasks, min(items), len(scores) - len(valid(scores)), len(scores))


def _settings(options: Iterable[str], threshold: float) -> dict[str, Setting | None]:
    """The settings of arms by their options, None of those that are not of these figures.

    Two arms never share a setting: a further variant of a bounding method goes by the options that set it apart from
    the first, and of write gates the first variant counts, and those only whose λ is said.
    """
    found: dict[str, Setting | None] = dict.fromkeys(options)
    first: dict[str, dict] = {}
    for text in found:
        parts = json.loads(text)
        admission, bounding = (dict(parts.get(family, {})) for family in ("admission", "bounding"))
        if not parts or set(parts) - {"admission", "bounding"}:
            continue
        trade_off, budget = admission.pop("trade_off", None), bounding.pop("budget", None)
        if admission:
            if admission["method"] != "write_gate" or admission["threshold"] != threshold or trade_off is None:
                continue
            if first.setdefault("write_gate", admission) != admission:
                continue
        name = bounding.pop("method", None)
        usual = first.setdefault(f"bounding {name}", bounding)
        if apart := [f"{key} {value}" for key, value in bounding.items() if usual.get(key) != value]:
            name = f"{name} ({', '.join(apart)})"
        found[text] = Setting(trade_off, budget, name)
    return found


def _heads(scores: pd.DataFrame) -> int:
    dense = scores[scores["method"] == DENSE]
    if dense.empty:
        raise InputError("there are no rows of the unpruned model; run the target accuracy.")
    return int((dense["kept_entries"] / dense["n_tokens"]).iloc[0])


def several(found: Bounded) -> int | None:
    """The largest limit that the full cache outgrows :data:`SEVERAL` times; None where it outgrows none as much."""
    whole = found.entries.value[found.full]
    fitting = [budget for budget in found.budgets if whole >= SEVERAL * budget]
    return max(fitting, default=None)


def steps_right(rows: pd.DataFrame) -> float:
    """Share of the steps in percent that the unpruned model writes before its first wrong one; NaN where tasks have no
    steps."""
    dense = valid(rows[(rows["metric"] == "steps") & (rows["method"] == DENSE)])
    return 100 * float(dense["value"].mean()) if len(dense) else float(np.nan)
