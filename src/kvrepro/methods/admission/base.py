"""What an admission method is: for a context and a budget, a local window and a decision per entry."""

from __future__ import annotations

from dataclasses import dataclass

from kvrepro.cache.admitted import Policy


@dataclass
class Admission:
    """Base of all admission methods. A method's options are its dataclass fields."""

    def policy(self, kept: float, n: int) -> Policy:
        """The policy that holds about ``kept * n`` of ``n`` context tokens per head.

        Raises InputError when the method cannot meet that budget.
        """
        raise TypeError(f"{type(self).__name__} must define policy(kept, n).")
