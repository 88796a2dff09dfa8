"""Processes with all that they start, as each system has them."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from typing import Any

if sys.platform == "win32":
    GROUP: dict[str, Any] = {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}

    def end_group(process: subprocess.Popen[bytes]) -> None:
        # A process that has ended names none of its children any more.
        subprocess.run(["taskkill", "/T", "/F", "/PID", str(process.pid)], capture_output=True, check=False)
else:
    GROUP: dict[str, Any] = {"start_new_session": True}

    def end_group(process: subprocess.Popen[bytes]) -> None:
        """Ends it at once, with all that it started, also if it has ended itself."""
        # The whole group may be gone.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
