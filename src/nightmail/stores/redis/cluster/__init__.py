"""What only a cluster needs: which node has a slot, and verbs that reach several slots."""
