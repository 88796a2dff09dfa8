"""Errors and their codes."""

import pickle
import re
from pathlib import Path
from typing import get_args

from tailrope import ErrorCode, TailropeError, _native

DOCS = Path(__file__).parents[2] / "docs" / "reference" / "errors.md"


def test_the_type_has_the_codes_of_the_engine():
    assert list(get_args(ErrorCode)) == _native.error_codes()


def test_the_docs_tell_every_code():
    rows = re.findall(r"^\| `(\w+)` \| (Node: )?", DOCS.read_text(), re.MULTILINE)
    assert sorted(code for code, of_node in rows if not of_node) == sorted(_native.error_codes())


def test_an_error_keeps_what_it_tells_when_it_is_sent_to_another_process():
    error = pickle.loads(pickle.dumps(_native.client_refusal(401)))
    assert type(error) is TailropeError and (error.code, error.status) == ("unauthorized", 401)
    assert str(error) == str(_native.client_refusal(401))
