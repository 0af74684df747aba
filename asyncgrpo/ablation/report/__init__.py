"""A study's results as one file of HTML: no script, no network, nothing that is not in results.json."""
