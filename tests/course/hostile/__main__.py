"""Write the class of attackers into a folder: ``python -m tests.course.hostile FOLDER``."""

import sys
from pathlib import Path

from tests.course.hostile import ATTACKS, NAME, student

for attack in ATTACKS:
    attack.plant(Path(sys.argv[1]) / student(attack) / NAME)
