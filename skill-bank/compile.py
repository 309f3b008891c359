"""Compile skills from their sources in this folder. Needs PyYAML only: see docs/evolution/skill-bank.md.

python skill-bank/compile.py --help
"""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
# a dry run leaves the tree as it was, caches of byte code included; and the code of this checkout runs, no other
sys.dont_write_bytecode = True
sys.path.insert(0, str(HERE.parent))

from astraflow.evolution.skillbank.cli import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main(bank=HERE))
