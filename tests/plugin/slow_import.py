"""A module whose first import takes long, for the end of the fork server during its imports."""

import time
from pathlib import Path

if not Path("importing").exists():
    Path("importing").touch()
    time.sleep(20)
