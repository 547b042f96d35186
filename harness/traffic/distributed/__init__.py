"""Several client processes play one schedule, here or on other machines: Locust's master conducts, its workers play."""
