"""End this process as soon as its parent ends, not by Ctrl-C. The fork server imports this first.

Left alone, a fork server notices the end of its parent only once its imports are done, up to ten
seconds later, and keeps the terminal or pipe of its parent open until then.
"""

import ctypes
import signal

from normbench.training.stop_signals import IGNORED_BY_SERVER

_PR_SET_PDEATHSIG = 1  # from <linux/prctl.h>; a forked child does not inherit the setting

ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
for number in IGNORED_BY_SERVER:
    signal.signal(number, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_UNBLOCK, IGNORED_BY_SERVER)  # it started with them blocked
