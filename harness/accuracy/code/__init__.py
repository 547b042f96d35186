"""Does a function that a model wrote pass its test? The program cut out of the answer, and a judge it can't reach."""
