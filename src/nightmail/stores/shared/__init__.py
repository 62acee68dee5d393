"""What every store is built from: coalesced publishes, the keeper thread, marks, fairness."""
