"""What a run promises: what is released of each client, and the noise for a budget."""

from .guarantees import calibrate as calibrate
from .guarantees import guarantee as guarantee
from .ledger import ledger_of as ledger_of
from .planned_run import PlannedRun as PlannedRun
from .planned_run import participations as participations
from .planned_run import plan_run as plan_run
from .terms import PrivacyOptions as PrivacyOptions
from .terms import PrivacyTerms as PrivacyTerms
