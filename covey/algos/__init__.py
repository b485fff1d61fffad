"""One file for each algorithm: its settings and its maths."""
