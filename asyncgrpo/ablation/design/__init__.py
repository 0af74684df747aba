"""What a study says: STUDY.yaml, checked, as arms and runs. Runs nothing."""
