"""A check of any server that speaks Streamable HTTP, from outside: `python -m tailrope probe URL`.

Knows nothing of Tailrope's own servers, and needs nothing but the standard library.
"""

from tailrope.probe._facts import Options, Unusable
from tailrope.probe._report import Finding, Report, probe

__all__ = ["Finding", "Options", "Report", "Unusable", "probe"]
