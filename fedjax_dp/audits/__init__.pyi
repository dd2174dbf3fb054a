"""Auditing: attacks on thousands of simulated runs prove lower bounds on epsilon."""

from .audit import audit as audit
from .audit import audit_mechanism as audit_mechanism
from .plots import plot_audit as plot_audit
from .verdict import Audit as Audit
