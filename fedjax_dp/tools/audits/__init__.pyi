"""Auditing: attacks on thousands of simulated runs prove lower bounds on epsilon."""

from .audit import audit as audit
from .audit import audit_mechanism as audit_mechanism
from .verdict import Audit as Audit
