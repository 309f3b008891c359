"""The skill bank: a base and measured patches become the skills that a coding agent loads.

    bank.yaml ─► SkillSource (base, manifest, patches) ─► compile_skill ─► SKILL.md + snapshot ─► packages

Imports the standard library and PyYAML only (and `astraflow.errors`): `skill-bank/compile.py` runs on a bare Python.
"""

from astraflow.evolution.skillbank.bank import Bank, SkillEntry, SkillSource, find_bank
from astraflow.evolution.skillbank.compiler import Compiled, compile_skill
from astraflow.evolution.skillbank.editing import activate, add_patch, deactivate, set_patch_fields
from astraflow.evolution.skillbank.output import FileState, Outcome, SkillResult, WriteReport, write_skills
from astraflow.evolution.skillbank.patch import Action, Patch, PatchStatus
from astraflow.evolution.skillbank.problem import Code, Problem, SkillBankError

__all__ = [
    "Action",
    "Bank",
    "Code",
    "Compiled",
    "FileState",
    "Outcome",
    "Patch",
    "PatchStatus",
    "Problem",
    "SkillBankError",
    "SkillEntry",
    "SkillResult",
    "SkillSource",
    "WriteReport",
    "activate",
    "add_patch",
    "compile_skill",
    "deactivate",
    "find_bank",
    "set_patch_fields",
    "write_skills",
]
