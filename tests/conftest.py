"""What all tests share."""

import os

from hypothesis import settings

# one thread a process, as launch sets it: two cores, several programs
os.environ.setdefault("OMP_NUM_THREADS", "1")

# the same examples every time, and no deadline: a first call that imports is slow on a busy machine
settings.register_profile("seeded", deadline=None, derandomize=True, database=None)
settings.load_profile("seeded")
