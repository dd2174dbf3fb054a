"""Federations of other systems, described by public facts: checked and calibrated."""

from .check import Check as Check
from .check import check as check
from .description import Deployment as Deployment
from .description import read as read
from .plan import Plan as Plan
from .plan import plan as plan
from .systems import SystemRow as SystemRow
from .systems import system_rows as system_rows
from .templates import template as template
