"""The tools; each is loaded when it is first used."""

from . import audits as audits
from . import cli as cli
from . import deployments as deployments
from . import figures as figures
from . import latency as latency
from . import papers as papers
from . import reports as reports
from . import testing as testing
from . import trackers as trackers
