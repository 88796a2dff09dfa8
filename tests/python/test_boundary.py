"""Whatever is called with whatever: an exception of a documented kind, never a crash, never a hang. See boundary.py.

`TAILROPE_FUZZ_SECONDS` is how long each kind of calls is made (0.5), `TAILROPE_FUZZ_SEED` which they are (1). They are
made in a process of its own, so that a crash is a signal that can be seen.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from conftest import HERE
from program import python
from tailrope._native import Engine

pytestmark = [pytest.mark.ours, pytest.mark.one_line]

SECONDS = float(os.environ.get("TAILROPE_FUZZ_SECONDS", "0.5"))
SEED = os.environ.get("TAILROPE_FUZZ_SEED", "1")
MORE_S = 50
SHOWN = 5
# Fewer would mean that the calls no longer fit what is called: so many of them, and so many kinds that were answered.
ANSWERED = 60
CALLS = {"values": 500, "threads": 500, "fork": 50, "public": 50}

# What hangs may have forked a child that holds the pipe, so what is printed goes to a file.
RUN = """
import runpy
del sys.argv[0]
os.dup2(os.open(sys.argv.pop(0), os.O_WRONLY | os.O_CREAT), 1)
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.timeout(SECONDS + MORE_S + 10)
@pytest.mark.parametrize("mode", list(CALLS))
def test_calls_with_anything_raise_what_is_documented(mode: str, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    told_in = tmp_path / "told"
    words = [str(HERE / "boundary.py"), mode, SEED, str(SECONDS), str(trace)]
    try:
        done = python(RUN, SECONDS + MORE_S, str(told_in), *words)
        code, errors = done.returncode, done.stderr
    except subprocess.TimeoutExpired:
        code, errors = None, ""
    printed = told_in.read_text() if told_in.exists() else ""
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
    session = Engine().open_session("one", "", 2, None, None, None)
    with pytest.raises(TypeError):
        session.admit("GET", [header], b"", False, "", None, None, None)  # type: ignore[list-item]
