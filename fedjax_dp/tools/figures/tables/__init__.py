"""What results say, as rows: worked out once, for pictures and for reports."""
