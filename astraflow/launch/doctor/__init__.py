"""What a run would trip over on this machine, with this data: each finding in words, with its remedy.

Loading a configuration refuses what is wrong in itself. This looks at what it meets: the machine's cores, memory, disk
and ports, the user's own tokenizer, rows and reward (those laws that depend on them).
"""

from astraflow.launch.doctor.examine import examine
from astraflow.launch.doctor.finding import Finding, Severity
from astraflow.launch.doctor.machine import Machine

__all__ = ["Finding", "Machine", "Severity", "examine"]
