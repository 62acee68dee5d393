"""What is measured: a file for each scenario. `registry` says on which stores each of them runs."""
