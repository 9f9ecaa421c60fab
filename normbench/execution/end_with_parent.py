"""End this process as soon as its parent ends. The fork server imports this module first.

Left alone, a fork server notices the end of its parent only once its imports are done, up to ten
seconds later, and keeps the terminal or pipe of its parent open until then.
"""

import ctypes
import signal

_PR_SET_PDEATHSIG = 1  # from <linux/prctl.h>; a forked child does not inherit the setting

ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
