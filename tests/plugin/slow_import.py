"""A module whose import takes long, for the end of the fork server during its imports."""

import time
from pathlib import Path

Path("importing").touch()
time.sleep(20)
