"""Traffic: workloads (what is asked), arrivals (when), the Locust client (asking), records (what came back)."""
