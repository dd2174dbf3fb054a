"""The papers' tables and figures: as published, by the literal recipe, by the correct reading, and what each proves."""
