"""What an admission method is: a gate per entry before the write, and the policy it makes for a context."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from kvrepro.cache.admitted import Policy
from kvrepro.models.loading import LoadedModel


@dataclass
class Admission(ABC):
    """Base of all admission methods. A method's options are its dataclass fields.

    ``by_fraction`` says whether the method takes a kept fraction; one that does not, such as a trained gate, decides
    itself how much it holds, and the evaluation measures that. ``artifacts`` lists fields that hold the path of
    something the workflow makes for the model.
    """

    by_fraction: ClassVar[bool] = False
    artifacts: ClassVar[tuple[str, ...]] = ()

    def prepare(self, lm: LoadedModel) -> None:  # noqa: B027 - most methods need nothing
        """Load what the method needs for a model, once. Raises InputError when an artefact is of another model."""

    @abstractmethod
    def policy(self, kept: float | None, n: int) -> Policy:
        """The policy for a context of ``n`` tokens; ``kept`` is None unless the method goes by fractions, and then
        about ``kept * n`` entries are held per head. Raises InputError when that cannot be met."""
