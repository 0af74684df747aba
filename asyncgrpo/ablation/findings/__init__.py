"""What the tables come to: measures, intervals, tests, expectations, controls. Pure, but for `results` and `check`."""
