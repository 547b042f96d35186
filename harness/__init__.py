"""How one launch is measured: engines, traffic, accuracy, telemetry. Never imports `bench`."""
