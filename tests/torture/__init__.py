"""Servers under torture: real sockets, faults of the network, of processes and of stores, one judge."""

import sys
from pathlib import Path

# The raw client and the sessions of tests/python.
sys.path.append(str(Path(__file__).parents[1] / "python"))
