"""Pictures of a sweep: whole figures, and the panels, marks and scales that they are made of."""
