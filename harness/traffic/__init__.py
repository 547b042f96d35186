"""Traffic: workloads (what is asked), arrivals (when), the Locust client (asking), and the records of what came back."""
