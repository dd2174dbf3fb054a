"""Papers: citations, theorems, verdicts on their claims, and reproductions of their tables and figures."""

from . import theorems as theorems
from .citations import CITATIONS as CITATIONS
from .plots import plot_claims as plot_claims
from .reproductions.recipe import recipes as recipes
from .reproductions.reproduce import reproduce as reproduce
from .reproductions.reproduction import Reproduction as Reproduction
from .row import PaperRow as PaperRow
from .settings import claim_rows as claim_rows
