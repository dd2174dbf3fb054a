"""What a run promises: what is released of each client, and the noise for a budget."""

from .client_events import client_events as client_events
from .guarantees import PreparedRun as PreparedRun
from .guarantees import calibrate as calibrate
from .guarantees import guarantee as guarantee
from .guarantees import prepare as prepare
from .planned_run import PlannedRun as PlannedRun
from .planned_run import participations as participations
from .planned_run import plan_run as plan_run
from .terms import PrivacyOptions as PrivacyOptions
from .terms import PrivacyTerms as PrivacyTerms
