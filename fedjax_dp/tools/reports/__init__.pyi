"""Reports: one self-contained HTML file about a run, a sweep, an audit or a reproduction."""

from .contents import Report as Report
from .contents import Section as Section
from .kinds import read_report as read_report
from .written import report as report
from .written import report_statement as report_statement
