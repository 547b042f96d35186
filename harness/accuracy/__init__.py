"""What a strategy costs in quality: forced decode against the 16-bit cache, and lm-eval tasks on the served endpoint."""
