"""Rounds of an algorithm: what one does, their loop, and what is measured."""

from .algorithm import Algorithm as Algorithm
from .comparison import gain as gain
from .comparison import standing as standing
from .metrics import Evaluation as Evaluation
from .metrics import client_metric as client_metric
from .metrics import rounds_to as rounds_to
from .personal import personal_models as personal_models
from .round import run_round as run_round
from .simulation import Simulation as Simulation
from .simulation import Timing as Timing
from .simulation import simulate as simulate
from .state import RoundReport as RoundReport
from .state import ServerState as ServerState
from .state import Transcript as Transcript
from .state import final_model as final_model
