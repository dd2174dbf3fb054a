"""Results as rows, computed once for pictures and reports."""
