"""The papers' tables and figures: as published, by the literal recipe, by the correct reading, and what each proves."""

from .found import Reproduction as Reproduction
from .recipe import recipes as recipes
from .reproduce import reproduce as reproduce
