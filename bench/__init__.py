"""What a run is and what it means: configuration, plan, execution, results, analysis, report."""
