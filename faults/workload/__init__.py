"""The programs whose processes are killed, frozen and cut off."""
