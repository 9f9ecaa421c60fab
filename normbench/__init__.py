"""normbench: normalizers compared across images per worker."""

import signal
import sys
from pathlib import Path

__version__ = "0.1.0"

# While a command imports its modules, which takes seconds with torch, Ctrl-C ends the process
# without a traceback. `config.cli.run` lets it raise KeyboardInterrupt again.
_is_command = Path((sys.argv or [""])[0]).name in ("-m", "normbench")  # -m: python -m normbench.X
if _is_command and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
