"""Jobs of a node spread over its GPUs."""

import subprocess
import sys
from collections import Counter

import torch

from kvrepro import gpus


def test_jobs_take_the_gpu_with_the_fewest(tmp_path):
    jobs = [gpus.take(3, tmp_path) for _ in range(7)]
    assert [gpu for gpu, _ in jobs] == [0, 1, 2, 0, 1, 2, 0]
    jobs[1][1].close()
    jobs[4][1].close()
    assert [gpus.take(3, tmp_path)[0] for _ in range(2)] == [1, 1]  # closed at once, so the place is free again


def test_a_killed_job_gives_its_place_back(tmp_path):
    code = f"from pathlib import Path; from kvrepro import gpus; t = gpus.take(2, Path({str(tmp_path)!r})); print(t[0])"
    hold = [sys.executable, "-c", f"{code}; import sys, time; sys.stdout.flush(); time.sleep(60)"]
    with subprocess.Popen(hold, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "0\n"
        gpu, file = gpus.take(2, tmp_path)
        assert gpu == 1
        file.close()
        process.kill()
    assert gpus.take(2, tmp_path)[0] == 0


def test_a_job_works_on_the_gpu_of_its_place(tmp_path, monkeypatch):
    current = []
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    held = [gpus.place(tmp_path) for _ in range(4)]
    assert Counter(current) == {0: 2, 1: 2} and all(held)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert gpus.place(tmp_path) is None and len(current) == 4
