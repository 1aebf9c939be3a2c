"""Programs under chosen schedules: all of them, the one in which a race does harm, and what is wrong in words."""

from collectlab.explore.diagnosis import Diagnosis, Finding, diagnose, findings
from collectlab.explore.schedules import Outcomes, every_schedule
from collectlab.explore.witness import Witness, witness

__all__ = ["Diagnosis", "Finding", "Outcomes", "Witness", "diagnose", "every_schedule", "findings", "witness"]
