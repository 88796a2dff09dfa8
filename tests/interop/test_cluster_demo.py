"""What `make demo-cluster` shows holds. (I3, I12, I13)"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.full
@pytest.mark.timeout(400)
def test_a_rolling_restart_loses_nothing_and_a_kill_one_call() -> None:
    command = [ROOT / "tests/services/with", "nginx", "--", sys.executable, ROOT / "demo", "--part", "cluster"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=360)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all others: 0 lost, 0 repeated, 0 failed, 0 run twice" in done.stdout
