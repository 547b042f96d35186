"""`make perf`: how fast this project is, beside other tools of its kind, measured in one run on one machine."""
