"""Compute: from one batch of plain integers to the tokens sampled for its rows. Knows `scheduler.batch`, nothing else
of ours."""
