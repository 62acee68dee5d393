"""Nightmail and its peers, measured in one run on the same private servers. See README.md in this directory."""
