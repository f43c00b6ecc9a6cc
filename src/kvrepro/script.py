"""How a script of the workflow runs: output and progress go to the rule's log, bad input ends it with one sentence."""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvrepro import gpus, identity, results
from kvrepro.errors import InputError
from kvrepro.files import sha256_file


@dataclass
class Run:
    """One job: what its result's provenance says of it."""

    rule: str
    params: dict[str, Any]
    config: dict[str, Any]
    started: float = field(default_factory=time.monotonic)

    def provenance(self, device: str = "cpu", **more: Any) -> dict[str, Any]:
        """Provenance of a result made now: the hash of the config, the rule, its parameters, the wall time so far."""
        job = {"rule": self.rule, "params": self.params, "params_hash": results.config_hash(self.params)}
        spent = {"wall_seconds": round(time.monotonic() - self.started, 1)}
        return results.provenance(self.config, device, **job, **spent, **more)

    def unfinished(self, inputs: Iterable[str | Path]) -> Path:
        """Folder for what the job had finished when it was killed; another one whenever its parameters, its inputs or
        the code of the package change."""
        code = identity.code([Path(__file__).parent])
        files = {str(path): sha256_file(path) for path in inputs}
        about = {key: self.config[key] for key in ("tier", "device")}
        made = results.config_hash({"rule": self.rule, "params": self.params, "code": code, "files": files} | about)
        return Path("build/unfinished") / f"{self.rule}-{made}"


@contextmanager
def job(snakemake: Any) -> Iterator[Run]:
    """Run the block as the job ``snakemake``, with the threads it was given.

    An InputError, or any other exception, becomes one line on standard error and exit status 1; the traceback of the
    latter is in the log.
    """
    path = Path(str(snakemake.log[0]))
    path.parent.mkdir(parents=True, exist_ok=True)
    _limit_threads(snakemake.threads)
    with path.open("w", buffering=1) as log, redirect_stdout(log), redirect_stderr(log):
        try:
            _place = gpus.place() if getattr(snakemake.resources, "gpu", 0) else None  # held until the job ends
            yield Run(snakemake.rule, dict(snakemake.params), dict(snakemake.config))
        except Exception as error:
            if isinstance(error, InputError):
                sentence = str(error)
            else:
                traceback.print_exc()
                sentence = f"{type(error).__name__}: {error} (traceback in {path})"
            print(sentence)
            print(f"\n{snakemake.rule}: {sentence}\n", file=sys.__stderr__)
            raise SystemExit(1) from None


def _limit_threads(threads: int) -> None:
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(threads)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(threads)
