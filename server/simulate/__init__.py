"""The command `cohort simulate`."""
