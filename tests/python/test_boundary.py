"""Whatever is called with whatever: an exception of a documented kind, never a crash, never a hang. See boundary.py.

`TAILROPE_FUZZ_SECONDS` is how long each kind of calls is made (0.5), `TAILROPE_FUZZ_SEED` which they are (1). They are
made in a process of its own, so that a crash is a signal that can be seen.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import HERE
from tailrope._native import Engine

pytestmark = [pytest.mark.ours, pytest.mark.one_line]

SECONDS = float(os.environ.get("TAILROPE_FUZZ_SECONDS", "0.5"))
SEED = os.environ.get("TAILROPE_FUZZ_SEED", "1")
MORE_S = 50
SHOWN = 5
# Fewer would mean that the calls no longer fit what is called: so many of them, and so many kinds that were answered.
ANSWERED = 60
CALLS = {"values": 500, "threads": 500, "fork": 50, "public": 50}


@pytest.mark.timeout(SECONDS + MORE_S + 10)
@pytest.mark.parametrize("mode", list(CALLS))
def test_calls_with_anything_raise_what_is_documented(mode: str, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    command = [sys.executable, str(HERE / "boundary.py"), mode, SEED, str(SECONDS), str(trace)]
    try:
        # What hangs may have forked a child that holds the pipes, so they are files.
        with (tmp_path / "out").open("w+") as out, (tmp_path / "err").open("w+") as err:
            code = subprocess.run(command, stdout=out, stderr=err, timeout=SECONDS + MORE_S, check=False).returncode
    except subprocess.TimeoutExpired:
        code = None
    printed, errors = (tmp_path / "out").read_text(), (tmp_path / "err").read_text()
    made = trace.read_text().splitlines() if trace.exists() else []
    last = "\n".join(line[:400] for line in made[-SHOWN:])
    assert code == 0, f"it ended with {code}, {printed}\nthe last calls:\n{last}\n{errors[-4000:]}"
    assert "panicked" not in errors, errors[-4000:]
    told = json.loads(printed)
    assert told["findings"] == [] and told["calls"] > CALLS[mode]
    assert mode != "values" or len(told["answered"]) > ANSWERED, told["answered"]


# What such calls have found. Each was an exception of another kind, a crash or a hang.


@pytest.mark.parametrize("header", [(b"accept",), (), {"accept": b"*"}, [b"accept"], b"", 7, (b"a", "b")])
def test_a_header_that_is_no_pair_of_bytes_is_a_type_error(header: object) -> None:
    session = Engine().open_session("one", 2, None, None)
    with pytest.raises(TypeError):
        session.admit("GET", [header], b"", False)  # type: ignore[list-item]
